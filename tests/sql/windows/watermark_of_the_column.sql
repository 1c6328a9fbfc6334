-- WATERMARK FOR a column alone: rows are in order, and nothing is waited for.

CREATE TABLE readings (
    read_at TIMESTAMP,
    sensor TEXT,
    x DOUBLE,
    WATERMARK FOR read_at
) WITH (
    connector = 'single_file',
    path = '../inputs/readings.json',
    format = 'json',
    type = 'source'
);

SELECT sensor, tumble(interval '30 seconds') AS window, count(*) AS readings, count(x) AS values, sum(x) AS total
FROM readings
GROUP BY sensor, window;
