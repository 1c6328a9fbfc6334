-- QUALIFY keeps the rows whose window functions pass a condition.

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

SELECT status, order_id, amount
FROM orders
QUALIFY row_number() OVER (PARTITION BY status ORDER BY amount DESC, order_id) <= 2;

SELECT customer_id, sum(amount) AS total, rank() OVER (ORDER BY sum(amount) DESC) AS place
FROM orders
GROUP BY customer_id
QUALIFY place <= 3;

SELECT DISTINCT status
FROM orders
WINDOW w AS (PARTITION BY coupon ORDER BY order_id)
QUALIFY row_number() OVER w = 1 AND quantity > 0;
