CREATE TABLE orders (id BIGINT)
WITH (connector = 'single_file', path = '../inputs/lang_orders.json', format = 'json', type = 'source');

CREATE TABLE numbers (a INT)
WITH (connector = 'single_file', path = 'numbers.json', format = 'json', type = 'sink');

INSERT INTO numbers SELECT 'x' FROM orders;
