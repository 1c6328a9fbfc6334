-- A row of a table is no value.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT ARRAY[readings.*] FROM readings;
