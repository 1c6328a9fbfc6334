-- Sums near the end of BIGINT, distinct texts in their order, rows of a table counted.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT
    sum(big) AS total,
    sum(a) AS small_total,
    count(readings.*) AS n,
    string_agg(DISTINCT coalesce(s, 'none'), ',') AS texts,
    string_agg(DISTINCT upper(s), '|' ORDER BY upper(s) DESC) AS texts_backwards
FROM readings;
