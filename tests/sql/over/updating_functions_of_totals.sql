-- Window functions over totals that change, by different partitions.

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

SELECT
    customer_id,
    status,
    orders,
    rank() OVER (PARTITION BY status ORDER BY orders DESC) AS rank,
    sum(orders) OVER (PARTITION BY customer_id) AS of_customer
FROM (SELECT customer_id, status, count(*) AS orders FROM orders GROUP BY customer_id, status);
