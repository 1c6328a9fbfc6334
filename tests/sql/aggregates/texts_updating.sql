-- Texts joined in an order. Kept up to date.

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
    string_agg(note, ',' ORDER BY reading_id) AS notes,
    string_agg(note, ' ' ORDER BY reading_id DESC) AS falling,
    string_agg(CAST(reading_id AS TEXT), '-' ORDER BY reading_id) FILTER (WHERE ok) AS fine
FROM readings
GROUP BY sensor;
