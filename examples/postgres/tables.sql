-- The tables of a shop in PostgreSQL, and what is in them. Run it there:
--   psql "$DATABASE_URL" -f examples/postgres/tables.sql

CREATE TABLE customers (id BIGINT PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT NOT NULL, amount NUMERIC(10, 2) NOT NULL, state TEXT);
CREATE TABLE city_totals (city TEXT PRIMARY KEY, orders BIGINT, amount NUMERIC(20, 2));

-- When a row changes, the old one is needed to take it back.
ALTER TABLE customers REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;

INSERT INTO customers VALUES (1, 'Ada', 'Linz'), (2, 'Bob', 'Graz'), (3, 'Eve', 'Linz');
INSERT INTO orders VALUES (1, 1, 10.50, 'open'), (2, 2, 7.00, 'open'), (3, 1, 2.50, 'open'), (4, 3, 1.00, 'cancelled');
