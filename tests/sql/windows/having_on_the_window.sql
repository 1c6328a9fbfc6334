-- HAVING on the window, on a key and by an alias.

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

SELECT status, tumble(interval '1 minute') AS window, count(*) AS orders
FROM orders
GROUP BY status, window
HAVING orders >= 2 AND status <> 'new' AND window.start >= timestamp '2024-05-01T08:05:00';
