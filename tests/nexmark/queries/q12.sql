-- Windows: the bids of a bidder in every 10 seconds, here of event time.

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

SELECT bidder, num, window.start AS window_start, window.end AS window_end
FROM (
    SELECT bidder, count(*) AS num, tumble(interval '10 second') AS window
    FROM bids
    GROUP BY bidder, window
);
