-- Highest bid: of every 10 seconds.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 100,
    message_count = 10000,
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

SELECT b.auction AS auction, b.price AS price, b.bidder AS bidder, b.datetime AS datetime, b.extra AS extra
FROM (
    SELECT auction, price, bidder, datetime, extra, tumble(interval '10 second') AS window
    FROM bids
    GROUP BY auction, price, bidder, datetime, extra, window
) b
JOIN (
    SELECT max(price) AS highest, tumble(interval '10 second') AS window
    FROM bids
    GROUP BY window
) m ON b.window = m.window AND b.price = m.highest;
