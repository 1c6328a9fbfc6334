-- to_char, to_date and to_timestamp understand the patterns of PostgreSQL and those of strftime.

CREATE TABLE readings (
    id BIGINT, a INT, b INT, big BIGINT, f DOUBLE, flag BOOLEAN, s TEXT, ts TIMESTAMP, ts2 TIMESTAMP, d DATE
) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT
    id,
    to_char(ts, 'YYYY-MM-DD') AS day,
    to_char(ts, 'YYYY-MM-DD HH24:MI:SS.MS') AS milliseconds,
    to_char(ts, 'HH12:MI AM') AS clock,
    to_char(ts, 'FMDD FMMonth YYYY') AS words,
    to_char(ts, 'Day|DY|MON') AS names,
    to_char(ts, 'IYYY-"W"IW-ID') AS week,
    to_char(ts, 'DDD WW W Q D') AS numbers,
    to_char(d, 'DD/MM/YY') AS short,
    to_char(ts, '%Y/%m') AS strftime,
    to_date('05 Dec 2000', 'DD Mon YYYY') AS read_day,
    to_timestamp('2000-12-05 10:20', 'YYYY-MM-DD HH24:MI') AS read_time,
    date_trunc('minutes', ts) AS minute
FROM readings;
