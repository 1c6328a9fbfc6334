-- The rows before are counted by a number.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT lag(a, b) OVER (ORDER BY id) FROM readings;
