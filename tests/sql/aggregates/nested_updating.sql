-- Counts of counts: groups move from one to the next.

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

SELECT orders, count(*) AS customers, sum(amount) AS amount, min(customer_id) AS least
FROM (SELECT customer_id, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY customer_id)
GROUP BY orders;
