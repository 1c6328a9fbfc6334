-- The mean of decimals.
-- approx: 1e-6

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

SELECT status, tumble(interval '5 minutes') AS window, avg(CAST(amount AS DECIMAL(12, 2))) AS mean
FROM orders
GROUP BY status, window;
