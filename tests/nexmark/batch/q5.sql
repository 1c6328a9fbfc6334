-- Hot items: every 2 seconds, the auctions with the most bids of the last 10.

WITH counts AS (
    SELECT
        auction,
        count(*) AS num,
        epoch_ns(datetime) // 2_000_000_000 * 2_000_000_000 - earlier * 2_000_000_000 AS started
    FROM bid, (SELECT unnest(range(5)) AS earlier)
    GROUP BY auction, started
)
SELECT auction, num, make_timestamp_ns(started) AS window_start
FROM counts
WHERE (started, num) IN (SELECT (started, max(num)) FROM counts GROUP BY started);
