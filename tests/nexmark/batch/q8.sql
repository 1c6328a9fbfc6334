-- Monitor new users: who registered and opened an auction within the same 10 seconds.

SELECT id, name, make_timestamp_ns(p.bin * 10_000_000_000) AS window_start
FROM (SELECT DISTINCT id, name, epoch_ns(datetime) // 10_000_000_000 AS bin FROM person) p
JOIN (SELECT DISTINCT seller, epoch_ns(datetime) // 10_000_000_000 AS bin FROM auction) a
    ON p.id = a.seller AND p.bin = a.bin;
