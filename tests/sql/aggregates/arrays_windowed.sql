-- Values gathered in an order, with nulls and without, and each once. In windows.

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
    tumble(interval '1 minute') AS window,
    array_agg(reading_id ORDER BY reading_id) AS readings,
    array_agg(x ORDER BY x DESC NULLS LAST, reading_id) AS falling,
    array_agg(distinct note ORDER BY note) AS notes,
    array_agg(flags ORDER BY flags) FILTER (WHERE flags > 40) AS large
FROM readings
GROUP BY sensor, window;
