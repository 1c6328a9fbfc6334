-- Counts, sums, means and extremes, of numbers, texts and instants; `s6` has nulls only. Kept up to date.
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
    count(*) AS n,
    count(x) AS xs,
    sum(x) AS total,
    sum(flags) AS flags,
    avg(flags) AS mean_flags,
    mean(x) AS mean_x,
    min(x) AS least,
    max(x) AS most,
    min(note) AS first_note,
    max(read_at) AS latest,
    min(ok) AS all_ok
FROM readings
GROUP BY sensor;
