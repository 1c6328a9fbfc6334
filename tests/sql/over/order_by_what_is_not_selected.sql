-- ORDER BY columns and expressions that are not selected, by the names of tables too.

CREATE TABLE orders (
    order_id BIGINT,
    customer_id BIGINT,
    placed_at TIMESTAMP,
    status TEXT,
    amount BIGINT,
    quantity INT,
    coupon TEXT,
    ship_to STRUCT<city TEXT, country TEXT>,
    WATERMARK FOR placed_at AS placed_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/orders.json',
    format = 'json',
    type = 'source'
);

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

SELECT o.order_id, c.name
FROM orders o
JOIN customers c ON c.customer_id = o.customer_id
ORDER BY c.region, o.amount % 100 DESC, o.order_id
LIMIT 12;
