-- Sums and means of decimals are exact.

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

SELECT status, sum(CAST(amount AS DECIMAL(12, 2))) AS total, max(CAST(amount AS DECIMAL(12, 2))) AS most, count(*) AS orders
FROM orders
GROUP BY status;
