-- Rows without a partner are there until it comes.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW paid AS SELECT id, customer FROM orders WHERE status = 'paid';
CREATE VIEW fresh AS SELECT id, customer FROM orders WHERE status = 'new';

SELECT fresh.id AS fresh, paid.id AS paid FROM fresh FULL OUTER JOIN paid ON fresh.customer = paid.customer;
