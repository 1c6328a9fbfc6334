-- A line through the points of two columns. In windows.
-- approx: 1e-9

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
    tumble(interval '10 minutes') AS window,
    regr_count(y, x) AS points,
    regr_slope(y, x) AS slope,
    regr_intercept(y, x) AS intercept,
    regr_r2(y, x) AS r2,
    regr_avgx(y, x) AS avgx,
    regr_avgy(y, x) AS avgy,
    regr_sxx(y, x) AS sxx,
    regr_syy(y, x) AS syy,
    regr_sxy(y, x) AS sxy
FROM readings
WHERE sensor IN ('s1', 's2', 's3', 's4')
GROUP BY sensor, window;
