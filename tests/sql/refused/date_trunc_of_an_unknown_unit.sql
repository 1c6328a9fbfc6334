-- The units are known.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT date_trunc('fortnight', TIMESTAMP '2024-01-01 00:00:00') FROM readings;
