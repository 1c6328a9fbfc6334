-- What operators are made of cannot be called.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT checked__add__int64(a, b) FROM readings;
