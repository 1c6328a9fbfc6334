CREATE TABLE orders (
  id BIGINT NOT NULL,
  amount DOUBLE,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE narrow (id TEXT, amount INT, at TIMESTAMP(3));

INSERT INTO narrow SELECT id, amount, at FROM orders;

SELECT id || '!' AS id, amount, at FROM narrow WHERE amount > 50;
