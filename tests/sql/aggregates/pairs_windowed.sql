-- Covariances and correlation of two columns, either of which may be null. In windows.
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
    covar(y, x) AS a,
    covar_samp(y, x) AS b,
    covar_pop(y, x) AS c,
    corr(y, x) AS d
FROM readings
WHERE sensor IN ('s1', 's2', 's3', 's4')
GROUP BY sensor, window;
