-- DISTINCT inside aggregates; repeated rows count once. In windows.

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
    tumble(interval '2 minutes') AS window,
    count(distinct note) AS notes,
    count(distinct flags) AS different,
    sum(distinct flags) AS total,
    count(distinct reading_id) AS readings,
    count(reading_id) AS rows,
    max(distinct x) AS most
FROM readings
GROUP BY sensor, window;
