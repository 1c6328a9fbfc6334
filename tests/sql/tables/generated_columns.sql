-- Columns that are computed from those that are read, with and without STORED.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  quantity INT,
  cents BIGINT GENERATED ALWAYS AS (CAST(round(amount * 100) AS BIGINT)) STORED,
  who TEXT GENERATED ALWAYS AS (upper(coalesce(customer, 'nobody'))),
  each DOUBLE NOT NULL GENERATED ALWAYS AS (amount / quantity) STORED
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, cents, who, each FROM orders;
