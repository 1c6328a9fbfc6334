-- Bits and truth values; null where there is no value. Kept up to date.

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
    bit_and(flags) AS both,
    bit_or(flags) AS any,
    bit_xor(flags) AS odd,
    bool_and(ok) AS all_ok,
    bool_or(ok) AS some_ok,
    bool_and(x > 0) FILTER (WHERE x IS NOT NULL) AS all_positive,
    bit_or(flags) FILTER (WHERE ok) AS ok_bits
FROM readings
GROUP BY sensor;
