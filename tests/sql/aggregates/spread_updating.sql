-- Standard deviations and variances, under all their names. Kept up to date.
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
    stddev(x) AS a,
    stddev_samp(x) AS b,
    stddev_pop(x) AS c,
    var(x) AS d,
    var_samp(x) AS e,
    var_sample(x) AS f,
    var_pop(x) AS g,
    var_population(x) AS h
FROM readings
GROUP BY sensor;
