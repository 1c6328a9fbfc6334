-- A number stands for a column of the SELECT list.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT DISTINCT ON (3) id, a FROM readings;
