-- DISTINCT ON takes positions and names of the SELECT list, as ORDER BY does.

CREATE TABLE readings (id BIGINT, a INT, b INT, big BIGINT, s TEXT) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT DISTINCT ON (1) a > 0 AS positive, id FROM readings ORDER BY 1, id DESC;

SELECT DISTINCT ON (positive) a > 0 AS positive, id FROM readings ORDER BY positive, id;
