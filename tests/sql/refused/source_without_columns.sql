CREATE TABLE t WITH (connector = 'single_file', path = '/dev/null', type = 'source');
SELECT id FROM t;
