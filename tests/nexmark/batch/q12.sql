-- Windows: the bids of a bidder in every 10 seconds, here of event time.

SELECT
    bidder,
    count(*) AS num,
    make_timestamp_ns(bin * 10_000_000_000) AS window_start,
    make_timestamp_ns((bin + 1) * 10_000_000_000) AS window_end
FROM (SELECT bidder, epoch_ns(datetime) // 10_000_000_000 AS bin FROM bid)
GROUP BY bidder, bin;
