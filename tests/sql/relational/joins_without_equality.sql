-- Joins that compare nothing for equality: all pairs, ranges, inner and outer, of rows and of updating results.

CREATE TABLE sales (
  id BIGINT, shop TEXT, item BIGINT, amount BIGINT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_sales.json', type = 'source');

CREATE TABLE stock (
  item BIGINT, shop TEXT, price BIGINT, label TEXT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_stock.json', type = 'source');

CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;

SELECT s.id, k.label FROM sales s CROSS JOIN stock k;

SELECT s.id, k.item FROM sales s JOIN stock k ON s.amount > k.price;

SELECT s.id, k.item FROM sales s LEFT JOIN stock k ON s.amount > k.price AND k.shop <> s.shop;

SELECT s.id, k.item FROM sales s FULL JOIN stock k ON s.amount < k.price;

SELECT s.id, k.item FROM sales s RIGHT JOIN stock k ON s.amount BETWEEN k.price AND k.price + 1;

SELECT s.id, k.item FROM sales s, stock k WHERE s.amount <> k.price AND s.id < 3;

SELECT a.shop, b.shop AS other FROM totals a LEFT JOIN totals b ON a.total > b.total;

SELECT a.shop, b.label FROM totals a CROSS JOIN stock b WHERE a.total >= b.price * 4;

SELECT s.id, m.top FROM sales s JOIN (SELECT max(price) AS top FROM stock) m ON s.amount > m.top;
