-- No keys: one group for each window, in parts or not.

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

SELECT tumble(interval '1 minute') AS window, count(*) AS n, sum(flags) AS flags, median(x) AS middle, count(distinct sensor) AS sensors
FROM readings
GROUP BY window;
