CREATE TABLE orders (
  id BIGINT NOT NULL,
  status TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE paid (
  id BIGINT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = 'paid.json',
  format = 'json',
  type = 'sink'
);

CREATE TABLE fresh WITH (
  connector = 'single_file',
  path = 'fresh.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO paid SELECT id, amount FROM orders WHERE status = 'paid';
INSERT INTO fresh SELECT id FROM orders WHERE status = 'new';

SELECT id, status FROM orders WHERE status NOT IN ('paid', 'new');
