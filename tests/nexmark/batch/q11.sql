-- User sessions: the bids of a bidder in each of their sessions; 10 quiet seconds end one.

WITH marked AS (
    SELECT bidder, ns, coalesce(ns - lag(ns) OVER (PARTITION BY bidder ORDER BY ns) >= 10_000_000_000, true) AS first
    FROM (SELECT bidder, epoch_ns(datetime) AS ns FROM bid)
),
numbered AS (
    SELECT bidder, ns, count(*) FILTER (WHERE first) OVER (PARTITION BY bidder ORDER BY ns) AS number
    FROM marked
)
SELECT
    bidder,
    count(*) AS num,
    make_timestamp_ns(min(ns)) AS window_start,
    make_timestamp_ns(max(ns) + 10_000_000_000) AS window_end
FROM numbered
GROUP BY bidder, number;
