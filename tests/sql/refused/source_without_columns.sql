CREATE TABLE t WITH (connector = 'single_file', path = '../inputs/lang_orders.json', type = 'source');
SELECT id FROM t;
