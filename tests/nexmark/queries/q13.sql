-- Bounded side input: bids with the value that a table of 10,000 keys gives to the auction.

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

CREATE TABLE numbers (counter BIGINT NOT NULL, subtask_index BIGINT NOT NULL) WITH (
    connector = 'impulse',
    event_time_interval = '1ms',
    message_count = 10000,
    start_time = '2026-01-01T00:00:00'
);

CREATE VIEW side_input AS
SELECT counter AS key, concat('value ', counter) AS value
FROM numbers;

SELECT b.auction AS auction, b.bidder AS bidder, b.price AS price, b.datetime AS datetime, s.value AS value
FROM bids b
JOIN side_input s ON b.auction % 10000 = s.key;
