-- The first, the last and the nth value in an order; nulls are values. Kept up to date.

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
    first_value(reading_id ORDER BY read_at, reading_id) AS opening,
    last_value(reading_id ORDER BY read_at, reading_id) AS closing,
    first_value(x ORDER BY flags, reading_id) AS by_flags,
    last_value(note ORDER BY x, reading_id) AS note_of_most,
    nth_value(reading_id, 2 ORDER BY reading_id) AS second
FROM readings
WHERE sensor <> 's6' OR reading_id > 100
GROUP BY sensor;
