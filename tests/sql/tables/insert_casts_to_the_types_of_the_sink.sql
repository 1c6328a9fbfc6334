CREATE TABLE orders (
  id BIGINT NOT NULL,
  amount DOUBLE,
  at TIMESTAMP NOT NULL,
  quantity INT,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE typed (
  id TEXT,
  amount INT,
  at TEXT,
  quantity DOUBLE,
  day DATE,
  ok BOOLEAN,
  exact DECIMAL(10, 2)
) WITH (
  connector = 'single_file',
  path = 'typed.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO typed SELECT id, amount, at, quantity, at, quantity, amount FROM orders WHERE id IN (1, 4, 5);
