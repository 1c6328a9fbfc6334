-- Aggregates of expressions, and expressions of aggregates. In windows.
-- approx: 1e-12

CREATE TABLE readings (
    reading_id BIGINT,
    read_at TIMESTAMP,
    sensor TEXT,
    x DOUBLE,
    y DOUBLE,
    flags BIGINT,
    ok BOOLEAN,
    note TEXT,
    WATERMARK FOR read_at AS read_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/readings.json',
    format = 'json',
    type = 'source'
);

SELECT
    sensor,
    tumble(interval '2 minutes') AS window,
    sum(x * 2 + 1) AS doubled,
    sum(CASE WHEN ok THEN 1 ELSE 0 END) AS fine,
    max(x) - min(x) AS range,
    sum(flags) + count(*) AS both,
    coalesce(sum(x), 0) AS total,
    avg(CAST(flags AS DOUBLE)) > 30 AS busy,
    max(length(note)) AS longest
FROM readings
GROUP BY sensor, window;
