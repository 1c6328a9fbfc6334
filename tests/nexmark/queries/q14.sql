-- Calculation: conversion, time of day and how often a letter occurs, for bids within a range.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 0.2,
    message_count = 5000,
    base_time = '2026-01-01T05:00:00',
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
    bidder,
    0.908 * price AS price,
    CASE
        WHEN date_part('hour', datetime) >= 8 AND date_part('hour', datetime) <= 18 THEN 'dayTime'
        WHEN date_part('hour', datetime) <= 6 OR date_part('hour', datetime) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS bid_time_type,
    datetime,
    extra,
    length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bids
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
