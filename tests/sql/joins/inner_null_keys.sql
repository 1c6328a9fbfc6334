-- Keys that are null on both sides do not meet; IS NOT DISTINCT FROM is a condition.

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

SELECT o.order_id, c.customer_id
FROM orders o
JOIN customers c ON o.customer_id = c.customer_id AND o.coupon IS NOT DISTINCT FROM CASE WHEN c.tier = 'gold' THEN 'VIP' END;
