-- Flink's older group windows: GROUP BY TUMBLE(ts, …), TUMBLE_START(ts, …).

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

SELECT TUMBLE_START(read_at, INTERVAL '2' MINUTE) AS began, TUMBLE_END(read_at, INTERVAL '2' MINUTE) AS ended,
    TUMBLE_ROWTIME(read_at, INTERVAL '2' MINUTE) AS last, sensor, count(*) AS n
FROM readings WHERE flags IS NOT NULL GROUP BY TUMBLE(read_at, INTERVAL '2' MINUTE), sensor HAVING count(*) > 1;
