-- hop(t, ts, slide, width) gives a row for each window; the result of GROUP BY changes.

CREATE TABLE readings (
    reading_id BIGINT,
    read_at TIMESTAMP NOT NULL,
    sensor TEXT,
    x DOUBLE,
    flags BIGINT,
    WATERMARK FOR read_at AS read_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/readings.json',
    format = 'json',
    type = 'source'
);

SELECT window_start, sensor, count(*) AS n, max(r.window_end) AS window_end
FROM hop(readings, read_at, INTERVAL '2 minutes', INTERVAL '5 minutes') AS r GROUP BY window_start, sensor;
