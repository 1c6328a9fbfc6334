-- Flink's SESSION in FROM: the sessions of each sensor.

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

SELECT sensor, window_start, window_end, count(*) AS n
FROM TABLE(SESSION(TABLE readings PARTITION BY sensor, DESCRIPTOR(read_at), INTERVAL '30' SECONDS))
GROUP BY sensor, window_start, window_end;
