-- Joins in parentheses, NATURAL joins, USING, three and more tables.

CREATE TABLE sales (
  id BIGINT, shop TEXT, item BIGINT, amount BIGINT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_sales.json', type = 'source');

CREATE TABLE stock (
  item BIGINT, shop TEXT, price BIGINT, label TEXT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_stock.json', type = 'source');

CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;

SELECT s.id, k.label, t.total FROM sales s JOIN (stock k JOIN totals t ON k.shop = t.shop) ON s.item = k.item;

SELECT s.id, k.label, t.total FROM sales s LEFT JOIN (stock k JOIN totals t ON k.shop = t.shop) ON s.item = k.item AND t.n > 1;

SELECT * FROM (SELECT shop, n FROM totals) a JOIN (SELECT label, shop FROM stock) b USING (shop);

SELECT * FROM (SELECT n, shop FROM totals) a NATURAL JOIN (SELECT label, shop FROM stock) b;

SELECT * FROM (SELECT n, shop FROM totals) a NATURAL LEFT JOIN (SELECT label, shop FROM stock) b;

SELECT * FROM (SELECT n, shop FROM totals) a FULL JOIN (SELECT label, shop FROM stock) b USING (shop);

SELECT j.n, j.label FROM (totals a JOIN stock b ON a.shop = b.shop) AS j;

SELECT id, label FROM (sales s JOIN stock k ON s.item = k.item), (totals t CROSS JOIN (SELECT max(n) AS m FROM totals) x) WHERE t.n = x.m AND s.shop = t.shop;

SELECT public.stock.label, s.id FROM public.stock JOIN sales s ON s.item = public.stock.item;

SELECT a.shop, a.n, b.total, c.n AS again FROM totals a JOIN totals b ON a.shop = b.shop LEFT JOIN totals c ON c.shop = b.shop AND c.n > 1;
