-- Results that change: an aggregate, joins, DISTINCT, a ranking, and window functions over changes.

CREATE TABLE orders (order_id BIGINT, shop TEXT, amount BIGINT) WITH (
    connector = 'single_file', path = 'orders.json', format = 'json', type = 'source'
);

CREATE TABLE shops (name TEXT, town TEXT) WITH (
    connector = 'single_file', path = 'shops.json', format = 'json', type = 'source'
);

CREATE VIEW totals AS
SELECT shop, count(*) AS orders, sum(amount) AS total, max(amount) AS most, min(order_id) AS first_order
FROM orders
GROUP BY shop;

CREATE TABLE aggregated (shop TEXT, orders BIGINT, total BIGINT, most BIGINT, first_order BIGINT)
WITH (connector = 'single_file', path = 'out/aggregated.json', format = 'debezium_json', type = 'sink');
INSERT INTO aggregated SELECT shop, orders, total, most, first_order FROM totals;

CREATE TABLE joined (order_id BIGINT, shop TEXT, town TEXT, amount BIGINT)
WITH (connector = 'single_file', path = 'out/joined.json', format = 'debezium_json', type = 'sink');
INSERT INTO joined
SELECT order_id, shop, town, amount FROM orders LEFT JOIN shops ON orders.shop = shops.name;

CREATE TABLE totals_of_towns (town TEXT, shops BIGINT, total BIGINT)
WITH (connector = 'single_file', path = 'out/totals_of_towns.json', format = 'debezium_json', type = 'sink');
INSERT INTO totals_of_towns
SELECT town, count(*), sum(total) FROM totals JOIN shops ON totals.shop = shops.name GROUP BY town;

CREATE TABLE distinct_amounts (shop TEXT, amount BIGINT)
WITH (connector = 'single_file', path = 'out/distinct_amounts.json', format = 'debezium_json', type = 'sink');
INSERT INTO distinct_amounts SELECT DISTINCT shop, amount FROM orders;

CREATE TABLE largest (shop TEXT, order_id BIGINT, amount BIGINT, place BIGINT)
WITH (connector = 'single_file', path = 'out/largest.json', format = 'debezium_json', type = 'sink');
INSERT INTO largest SELECT shop, order_id, amount, place FROM (
    SELECT shop, order_id, amount,
        row_number() OVER (PARTITION BY shop ORDER BY amount DESC, order_id) AS place
    FROM orders
) WHERE place <= 2;

CREATE TABLE shares (shop TEXT, total BIGINT, place BIGINT)
WITH (connector = 'single_file', path = 'out/shares.json', format = 'debezium_json', type = 'sink');
INSERT INTO shares SELECT shop, total, rank() OVER (ORDER BY total DESC) FROM totals;
