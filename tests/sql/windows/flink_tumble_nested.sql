-- A query over Flink's TUMBLE inside of another, and an alias in GROUP BY.

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

WITH minutes AS (
    SELECT window_start, window_end, upper(sensor) AS name, count(*) AS n
    FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(read_at), INTERVAL '1' MINUTE))
    GROUP BY window_start, window_end, name
)
SELECT name, max(n) AS most FROM minutes GROUP BY name;
