CREATE TABLE t (id INT) WITH (connector = 'single_file', type = 'source');
SELECT id FROM t;
