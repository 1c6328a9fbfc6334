-- An aggregate over rows that are kept once.

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

SELECT sensor, count(*) AS readings, sum(x) AS total
FROM (SELECT *, row_number() OVER (PARTITION BY reading_id ORDER BY read_at) AS n FROM readings)
WHERE n = 1
GROUP BY sensor;
