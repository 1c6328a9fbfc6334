-- Rows that come twice are kept once.

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

SELECT reading_id, sensor, x
FROM (SELECT *, row_number() OVER (PARTITION BY reading_id ORDER BY read_at DESC) AS n FROM readings)
WHERE n = 1 AND sensor IN ('s1', 's4');
