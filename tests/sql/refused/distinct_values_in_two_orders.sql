-- Distinct values have one order.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT string_agg(DISTINCT s, ',' ORDER BY s), string_agg(DISTINCT s, ',' ORDER BY s DESC) FROM readings;
