-- Channel ids: a number for the four great channels, what the url says for the others.

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

SELECT
    auction,
    bidder,
    price,
    channel,
    CASE
        WHEN lower(channel) = 'apple' THEN '0'
        WHEN lower(channel) = 'google' THEN '1'
        WHEN lower(channel) = 'facebook' THEN '2'
        WHEN lower(channel) = 'baidu' THEN '3'
        ELSE regexp_match(url, '(&|^)channel_id=([^&]*)')[2]
    END AS channel_id
FROM bids
WHERE regexp_match(url, '(&|^)channel_id=([^&]*)') IS NOT NULL
    OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');
