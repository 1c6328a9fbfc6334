-- HAVING on an aggregate that is selected and one that is not.

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

SELECT customer_id, tumble(interval '5 minutes') AS window, count(*) AS orders
FROM orders
GROUP BY customer_id, window
HAVING count(*) > 1 AND sum(amount) > 20000;
