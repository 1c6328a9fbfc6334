-- Casts round, intervals are multiplied, a date and an interval are a timestamp.

CREATE TABLE readings (
    id BIGINT, a INT, b INT, big BIGINT, f DOUBLE, flag BOOLEAN, s TEXT, ts TIMESTAMP, ts2 TIMESTAMP, d DATE
) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT
    id,
    a / 2 AS half,
    a % 3 AS rest,
    mod(a, 3) AS modulo,
    big - 1 AS less,
    CAST(0.6 AS INT) AS up,
    CAST(2.5 AS INT) AS away_from_zero,
    CAST(-1.5 AS INT) AS away_from_zero_below,
    CAST(f AS INT) AS to_even,
    round(f) AS rounded,
    round(2.5) AS rounded_number,
    ts + INTERVAL '1 hour' * a AS later,
    ts - INTERVAL '3 hours' / 2 AS earlier,
    d + INTERVAL '1 hour' AS after_midnight,
    d - INTERVAL '1 month' AS a_month_before,
    sign(f) AS sign,
    ceiling(f) AS ceiling,
    ~a AS inverted,
    CAST(CAST('\x4a4b' AS BYTEA) AS TEXT) AS bytes,
    convert_from(CAST('\x4a4b' AS BYTEA), 'UTF8') AS decoded
FROM readings;
