-- Rows with their windows are joined as all rows are.

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

SELECT a.reading_id, b.reading_id AS other
FROM (SELECT * FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(read_at), INTERVAL '1' MINUTE))) a
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(read_at), INTERVAL '1' MINUTE)) WHERE flags > 40) b
ON a.sensor = b.sensor AND a.window_start = b.window_start AND a.window_end = b.window_end;
