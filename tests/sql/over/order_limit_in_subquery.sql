-- An aggregate over the first rows of an order.

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

SELECT status, count(*) AS orders, sum(amount) AS amount
FROM (SELECT status, amount, order_id FROM orders ORDER BY amount DESC, order_id LIMIT 30)
GROUP BY status;
