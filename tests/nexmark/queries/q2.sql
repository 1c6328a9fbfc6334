-- Selection: the bids on certain auctions.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 1000,
    message_count = 5000,
    base_time = '2026-01-01T00:00:00',
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

SELECT auction, price
FROM bids
WHERE auction % 123 = 0;
