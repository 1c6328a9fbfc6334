-- Orders per city and minute, from files to files.
--
-- The city of a shop is looked up in a small file when an order comes. Minutes are written when the watermark has
-- passed them; an order that comes after its minute was written goes to late.json. `--state-dir` keeps open minutes and
-- the position in the input: a run that was stopped goes on where it was, and per_city.json holds every minute once.
--
--     headrace run examples/orders.sql --state-dir state --epoch-rows 8

CREATE TABLE orders (
  id BIGINT NOT NULL,
  shop TEXT NOT NULL,
  amount DECIMAL(10, 2) NOT NULL,
  placed TIMESTAMP NOT NULL,
  WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = 'examples/data/orders.json', late_table = 'late');

CREATE TEMPORARY TABLE shops (shop TEXT PRIMARY KEY, city TEXT)
WITH (connector = 'single_file', path = 'examples/data/shops.json');

CREATE TABLE per_city (city TEXT, minute TIMESTAMP, orders BIGINT, amount DECIMAL(10, 2))
WITH (connector = 'single_file', path = 'per_city.json');

CREATE TABLE late WITH (connector = 'single_file', path = 'late.json');

CREATE VIEW located AS
SELECT coalesce(shops.city, 'unknown') AS city, orders.amount
FROM orders LEFT JOIN shops ON orders.shop = shops.shop;

INSERT INTO per_city
SELECT city, window.start, orders, amount
FROM (
  SELECT city, tumble(INTERVAL '1 minute') AS window, count(*) AS orders, sum(amount) AS amount
  FROM located
  GROUP BY city, window
);
