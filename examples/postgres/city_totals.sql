-- How much each city has ordered, kept up to date in PostgreSQL while orders come, change and go and customers move.
--
-- `orders` and `customers` are followed by logical replication, each with a slot of its own; the totals are written
-- as upserts and deletes, each epoch in one transaction. tables.sql makes the tables. Then:
--   export DATABASE_URL=postgresql://user:password@localhost:5432/shop
--   headrace run examples/postgres/city_totals.sql --state-dir state

CREATE TABLE orders (
  id BIGINT PRIMARY KEY,
  customer_id BIGINT,
  amount DECIMAL(10, 2),
  state TEXT
) WITH (
  connector = 'postgres',
  type = 'source',
  url = '{{ DATABASE_URL }}',
  'table' = 'orders'
);

CREATE TABLE customers (
  id BIGINT PRIMARY KEY,
  city TEXT
) WITH (
  connector = 'postgres',
  type = 'source',
  url = '{{ DATABASE_URL }}',
  'table' = 'customers'
);

CREATE TABLE city_totals (
  city TEXT PRIMARY KEY,
  orders BIGINT,
  amount DECIMAL(20, 2)
) WITH (
  connector = 'postgres',
  type = 'sink',
  url = '{{ DATABASE_URL }}',
  'table' = 'city_totals'
);

INSERT INTO city_totals
SELECT c.city, count(*) AS orders, sum(o.amount) AS amount
FROM orders o JOIN customers c ON o.customer_id = c.id
WHERE o.state <> 'cancelled'
GROUP BY c.city;
