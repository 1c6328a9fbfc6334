-- An aggregate without GROUP BY has one row, even of no rows.

CREATE TABLE sales (
  id BIGINT, shop TEXT, item BIGINT, amount BIGINT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_sales.json', type = 'source');

CREATE TABLE stock (
  item BIGINT, shop TEXT, price BIGINT, label TEXT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_stock.json', type = 'source');

CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;

SELECT count(*) AS n, sum(amount)::BIGINT AS total, max(shop) AS m FROM sales WHERE id > 100;

SELECT count(DISTINCT shop) AS n, median(amount) AS m FROM sales WHERE id > 100;

SELECT count(*) AS n FROM (SELECT shop FROM totals WHERE n > 100) t;

SELECT count(*) AS n FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop HAVING count(*) < 2) t;

SELECT max(n) AS n FROM (SELECT count(*) AS n FROM sales WHERE shop = 'none') t;

SELECT count(*) AS n FROM sales WHERE id > 100 HAVING count(*) > 0;
