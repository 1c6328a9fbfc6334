-- TUMBLE in FROM without GROUP BY adds the window to each row.

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

SELECT reading_id, window_start, window_end, window_time
FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(read_at), INTERVAL '2' MINUTES)) WHERE flags > 40;
