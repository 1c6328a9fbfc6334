-- Log to a file system: every bid with the day and the minute that would name its folder.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 0.2,
    message_count = 5000,
    base_time = '2026-01-01T20:00:00',
    paced = false
);

CREATE VIEW bids AS
SELECT
    bid.auction AS auction,
    bid.bidder AS bidder,
    bid.price AS price,
    bid.channel AS channel,
    bid.url AS url,
    bid.datetime AS datetime,
    bid.extra AS extra
FROM nexmark
WHERE bid IS NOT NULL;

SELECT
    auction, bidder, price, datetime, extra,
    to_char(datetime, '%Y-%m-%d') AS day,
    to_char(datetime, '%H:%M') AS minute
FROM bids;
