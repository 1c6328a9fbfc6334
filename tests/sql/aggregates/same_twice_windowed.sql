-- The same aggregate twice, and with another argument. In windows.
-- approx: 1e-12

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
    sum(x) AS a,
    sum(x) AS b,
    sum(x) + 1 AS c,
    sum(y) AS d,
    avg(x) AS e,
    count(x) AS f
FROM readings
GROUP BY sensor, window;
