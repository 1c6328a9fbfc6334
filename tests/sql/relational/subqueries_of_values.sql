CREATE TABLE sales (
  id BIGINT, shop TEXT, item BIGINT, amount BIGINT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_sales.json', type = 'source');

CREATE TABLE stock (
  item BIGINT, shop TEXT, price BIGINT, label TEXT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_stock.json', type = 'source');

CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;

SELECT id FROM sales WHERE amount > (SELECT avg(amount) FROM sales);

SELECT id, (SELECT max(price) FROM stock k WHERE k.item = s.item) AS top FROM sales s;

SELECT id, (SELECT count(*) FROM stock k WHERE k.item = s.item) AS n FROM sales s;

SELECT shop, sum(amount)::BIGINT AS total FROM sales GROUP BY shop HAVING sum(amount) > (SELECT avg(total) FROM totals);

SELECT shop, count(*) AS n, (SELECT count(*) FROM stock k WHERE k.shop = s.shop) AS items FROM sales s GROUP BY shop;

SELECT id, (SELECT label FROM stock WHERE item = 15) AS label FROM sales;

SELECT id, (SELECT label FROM stock WHERE item = 99) AS label FROM sales;

SELECT id, (SELECT k.label FROM stock k WHERE k.item = s.item ORDER BY k.price DESC, k.shop LIMIT 1) AS label FROM sales s;

SELECT id FROM sales WHERE amount >= ALL (SELECT amount FROM sales WHERE amount IS NOT NULL);

SELECT id FROM sales WHERE amount > ALL (SELECT price FROM stock);

SELECT id FROM sales WHERE amount > ANY (SELECT price FROM stock);

SELECT id, amount < ANY (SELECT price FROM stock) AS a, amount <= ALL (SELECT price FROM stock WHERE price > 3) AS b, amount = ANY (SELECT price FROM stock) AS c, amount <> ALL (SELECT price FROM stock) AS d, amount = ALL (SELECT price FROM stock WHERE price = 5) AS e, amount <> ANY (SELECT price FROM stock) AS f FROM sales;

SELECT id FROM sales s WHERE amount = (SELECT max(t.amount) FROM sales t WHERE t.shop = s.shop);

SELECT (SELECT count(*) FROM stock) AS n, EXISTS (SELECT 1 FROM sales WHERE amount > 100) AS e;

SELECT shop, total FROM totals WHERE total = (SELECT max(total) FROM totals);

SELECT id, ARRAY(SELECT price FROM stock k WHERE k.item = s.item ORDER BY price) AS prices FROM sales s;

SELECT count(*) AS n, (SELECT max(price) FROM stock) AS m FROM sales WHERE id > 100;

SELECT id FROM sales WHERE (SELECT count(*) FROM stock WHERE price > 100) = 0;
