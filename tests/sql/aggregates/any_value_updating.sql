-- Any value of a group, where all are equal. Kept up to date.

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

SELECT
    sensor,
    any_value(upper(sensor)) AS name,
    any_value(1 + 1) AS two,
    grouping(sensor) AS rolled_up,
    count(*) AS n
FROM readings
GROUP BY sensor;
