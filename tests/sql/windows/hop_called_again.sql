-- The same hop called again over rows that are in it, by another key.

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

SELECT hop(interval '30 seconds', interval '2 minutes') AS window, orders, count(*) AS customers
FROM (
    SELECT customer_id, count(*) AS orders
    FROM orders
    GROUP BY customer_id, hop(interval '30 seconds', interval '2 minutes')
)
GROUP BY window, orders;
