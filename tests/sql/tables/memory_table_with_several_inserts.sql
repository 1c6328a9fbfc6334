CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE news (id BIGINT, what TEXT, amount DOUBLE);

INSERT INTO news SELECT id, 'paid', amount FROM orders WHERE status = 'paid';
INSERT INTO news (what, id) SELECT status, id FROM orders WHERE status <> 'paid';

SELECT what, id, amount FROM news WHERE id < 8;
