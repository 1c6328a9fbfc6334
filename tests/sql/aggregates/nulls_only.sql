-- Groups of nothing but nulls: counts are 0, everything else is null.

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
    count(*) > 0 AS some,
    count(x) AS xs,
    count(distinct note) AS notes,
    sum(x) AS total,
    avg(flags) AS mean,
    min(note) AS least,
    stddev(x) AS spread,
    median(x) AS middle,
    bit_or(flags) AS bits,
    bool_and(ok) AS all_ok,
    corr(x, y) AS together,
    string_agg(note, ',') AS notes_joined,
    array_agg(x) FILTER (WHERE x IS NOT NULL) AS values
FROM readings
WHERE sensor = 's6';
