CREATE TABLE sales (
  id BIGINT, shop TEXT, item BIGINT, amount BIGINT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_sales.json', type = 'source');

CREATE TABLE stock (
  item BIGINT, shop TEXT, price BIGINT, label TEXT, ts TIMESTAMP NOT NULL,
  WATERMARK FOR ts AS ts - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rel_stock.json', type = 'source');

CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;

SELECT id FROM sales WHERE item IN (SELECT item FROM stock);

SELECT id FROM sales s WHERE EXISTS (SELECT 1 FROM stock k WHERE k.item = s.item AND k.shop = s.shop);

SELECT id FROM sales s WHERE NOT EXISTS (SELECT * FROM stock k WHERE k.item = s.item);

SELECT id FROM sales s WHERE EXISTS (SELECT 1 FROM stock k WHERE k.item = s.item AND k.price < s.amount);

SELECT id FROM sales s WHERE NOT EXISTS (SELECT 1 FROM stock WHERE stock.price > s.amount);

SELECT id FROM sales WHERE item NOT IN (SELECT item FROM stock);

SELECT id FROM sales WHERE item NOT IN (SELECT item FROM stock WHERE item IS NOT NULL);

SELECT id FROM sales WHERE item NOT IN (SELECT item FROM stock WHERE price > 100);

SELECT id, item IN (SELECT item FROM stock) AS m, item NOT IN (SELECT price FROM stock WHERE price > 3) AS o FROM sales;

SELECT id FROM sales WHERE (item, shop) IN (SELECT item, shop FROM stock);

SELECT id FROM sales WHERE EXISTS (SELECT 1 FROM stock WHERE price > 100) OR amount > 5;

SELECT id FROM sales s WHERE amount > 6 OR s.item IN (SELECT k.item FROM stock k WHERE k.shop = s.shop);

SELECT shop FROM totals WHERE shop IN (SELECT shop FROM stock GROUP BY shop HAVING count(*) > 1);
