-- What is unknown is not true.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  quantity INT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, customer IS NULL AS anonymous, quantity > 3 AS many, (quantity > 3) IS NOT TRUE AS few, quantity = NULL AS never
FROM orders WHERE customer <> 'bob' OR quantity IS NULL;
