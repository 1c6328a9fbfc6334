-- A pattern of SIMILAR TO is known while planning.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT s SIMILAR TO s FROM readings;
