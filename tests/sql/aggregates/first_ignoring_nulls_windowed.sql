-- The first and the last value that is not null. In windows.

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
    first_value(x ORDER BY reading_id) IGNORE NULLS AS first_x,
    last_value(note ORDER BY reading_id) IGNORE NULLS AS last_note
FROM readings
GROUP BY sensor, window;
