-- Aggregates with parts and without in overlapping windows.
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
    hop(interval '1 minute', interval '150 seconds') AS window,
    count(*) AS n,
    avg(flags) AS mean,
    count(distinct note) AS notes,
    median(x) AS middle,
    last_value(reading_id ORDER BY reading_id) AS latest,
    bit_and(flags) AS bits
FROM readings
GROUP BY sensor, window;
