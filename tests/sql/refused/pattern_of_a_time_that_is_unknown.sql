-- Not every pattern of PostgreSQL is supported.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT to_char(TIMESTAMP '2024-01-01 00:00:00', 'YYYY BC') FROM readings;
