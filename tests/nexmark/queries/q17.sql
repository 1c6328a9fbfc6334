-- Auction statistics of a day: bids in three ranks of price, and their prices.

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
    auction,
    to_char(datetime, '%Y-%m-%d') AS day,
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    min(price) AS min_price,
    max(price) AS max_price,
    avg(price) AS avg_price,
    sum(price) AS sum_price
FROM bids
GROUP BY auction, to_char(datetime, '%Y-%m-%d');
