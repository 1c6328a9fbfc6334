-- A table joined with itself: customers that share a name, and orders after one another.

CREATE TABLE customers (
    customer_id BIGINT,
    name TEXT,
    tier TEXT,
    region TEXT,
    joined_at TIMESTAMP,
    WATERMARK FOR joined_at AS joined_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/customers.json',
    format = 'json',
    type = 'source'
);

SELECT a.customer_id AS one, b.customer_id AS other, a.name
FROM customers a
JOIN customers b ON a.name = b.name AND a.customer_id < b.customer_id;
