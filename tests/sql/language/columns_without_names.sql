-- Columns without AS are called as they are written, whatever the engine calls them.
CREATE TABLE orders (id BIGINT NOT NULL, amount DOUBLE, address STRUCT<city TEXT>) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id + 1, -id, upper('x'), orders.address.city, CAST(id AS TEXT), CASE WHEN id > 1 THEN 'later' END FROM orders WHERE id <= 2;
SELECT *, id * 2 FROM (SELECT id, amount FROM orders WHERE id = 1);
SELECT id % 2, count(*), sum(id) FILTER (WHERE id > 1) FROM orders GROUP BY 1;
SELECT id * 2, id * 2, id FROM orders WHERE id = 1 UNION ALL SELECT id, id, id FROM orders WHERE id = 2;
SELECT 1 + 1, 'a';
