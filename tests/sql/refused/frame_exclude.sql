CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  status TEXT,
  at TIMESTAMP NOT NULL,
  tags TEXT[],
  address STRUCT<city TEXT, geo STRUCT<lat DOUBLE, lon DOUBLE>>,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT sum(id) OVER (PARTITION BY status ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM orders;
