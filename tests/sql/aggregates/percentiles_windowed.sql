-- Medians and percentiles between the values. In windows.
-- approx: 1e-9

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
    median(x) AS middle,
    percentile_cont(0.25) WITHIN GROUP (ORDER BY x) AS quarter,
    percentile_cont(0.75) WITHIN GROUP (ORDER BY x DESC) AS low_quarter,
    quantile_cont(x, 0.75) AS three_quarters,
    percentile_cont(x, 0.5) AS half
FROM readings
GROUP BY sensor, window;
