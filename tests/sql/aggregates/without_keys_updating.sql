-- No GROUP BY: one row that changes.

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

SELECT count(*) AS n, sum(flags) AS flags, max(x) AS most, median(x) AS middle, count(distinct sensor) AS sensors, bool_or(ok) AS some_ok
FROM readings;
