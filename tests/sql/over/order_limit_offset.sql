-- The fourth to the eighth by an expression and an alias.

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

SELECT order_id, amount % 1000 AS rest
FROM orders
WHERE quantity IS NOT NULL
ORDER BY rest DESC, order_id
LIMIT 5 OFFSET 3;
