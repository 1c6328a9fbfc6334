-- The same window called again over rows that are in it.

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

SELECT tumble(interval '1 minute') AS window, max(amount) AS most, count(*) AS customers
FROM (
    SELECT customer_id, sum(amount) AS amount
    FROM orders
    GROUP BY customer_id, tumble(interval '1 minute')
)
GROUP BY window;
