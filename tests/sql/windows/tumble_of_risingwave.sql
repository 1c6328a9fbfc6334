-- tumble(t, ts, width) with EMIT ON WINDOW CLOSE is a window that closes.

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

SELECT window_start, sensor, sum(flags) AS flags
FROM tumble(readings, read_at, INTERVAL '2 minutes') GROUP BY window_start, window_end, sensor EMIT ON WINDOW CLOSE;
