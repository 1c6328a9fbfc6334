-- FILTER on some aggregates and not on others. Kept up to date.
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
    count(*) FILTER (WHERE ok) AS fine,
    count(*) FILTER (WHERE NOT ok) AS broken,
    sum(x) FILTER (WHERE x > 0) AS positive,
    avg(flags) FILTER (WHERE note = 'high') AS high_flags,
    count(distinct note) FILTER (WHERE flags > 30) AS notes,
    min(x) FILTER (WHERE false) AS never,
    count(*) AS n
FROM readings
GROUP BY sensor;
