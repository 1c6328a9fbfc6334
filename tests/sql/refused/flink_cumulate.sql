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

SELECT window_start, count(*) AS n FROM TABLE(CUMULATE(TABLE readings, DESCRIPTOR(read_at), INTERVAL '2' MINUTES)) GROUP BY window_start, window_end;
