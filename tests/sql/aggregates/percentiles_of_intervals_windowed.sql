-- Percentiles between and among intervals and instants. In windows; the values are those of PostgreSQL.
CREATE TABLE readings (
    sensor TEXT,
    x DOUBLE,
    read_at TIMESTAMP NOT NULL,
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
    CAST(percentile_cont(0.5) WITHIN GROUP (ORDER BY read_at - TIMESTAMP '2024-05-01 00:00:00') AS TEXT) AS middle,
    percentile_cont(0.25) WITHIN GROUP (ORDER BY INTERVAL '1 minute' * x DESC) AS quarter,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY read_at) AS instant,
    count(*) AS readings
FROM readings
GROUP BY sensor, window;
