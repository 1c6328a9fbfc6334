-- EXCEPT and INTERSECT, with and without ALL, of rows and of updating results. NULLs are equal here.

CREATE TABLE sales (
  id BIGINT, shop TEXT, item BIGINT, amount BIGINT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_sales.json', type = 'source');

CREATE TABLE stock (
  item BIGINT, shop TEXT, price BIGINT, label TEXT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_stock.json', type = 'source');

CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;

SELECT item, shop FROM sales EXCEPT SELECT item, shop FROM stock;

SELECT shop FROM sales EXCEPT ALL SELECT shop FROM stock;

SELECT item FROM sales INTERSECT SELECT item FROM stock;

SELECT item FROM sales INTERSECT ALL SELECT item FROM stock;

SELECT shop, n FROM totals EXCEPT SELECT shop, count(*) FROM stock GROUP BY shop;

SELECT n FROM totals INTERSECT ALL SELECT count(*) FROM stock GROUP BY shop;

SELECT item FROM sales UNION SELECT item FROM stock EXCEPT SELECT 10 UNION ALL SELECT price FROM stock;

SELECT shop FROM sales EXCEPT (SELECT shop FROM stock INTERSECT SELECT 'mill');

SELECT x, y FROM (VALUES (1, 'a'), (2, NULL)) AS v (x, y) EXCEPT VALUES (2, NULL);
