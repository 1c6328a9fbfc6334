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

CREATE VIEW a AS SELECT id, customer FROM orders WHERE id < 6;
CREATE VIEW b AS SELECT id, status FROM orders;

SELECT a.id, customer, status FROM a, b WHERE a.id = b.id AND status <> 'paid';
SELECT id, customer, status FROM a JOIN b USING (id) WHERE status = 'paid';
