-- Approximations, which are exact or nearly so for few values. Kept up to date.
-- approx: 0.05

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
    approx_distinct(note) AS notes,
    approx_distinct(flags) AS different,
    approx_median(x) AS middle,
    approx_percentile_cont(0.75) WITHIN GROUP (ORDER BY x) AS three_quarters,
    approx_percentile_cont_with_weight(1, 0.5) WITHIN GROUP (ORDER BY x) AS weighted
FROM readings
WHERE reading_id < 120
GROUP BY sensor;
