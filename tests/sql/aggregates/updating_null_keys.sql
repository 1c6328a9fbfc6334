-- Groups by keys that are null, in a struct or alone.

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

SELECT customer_id, ship_to.country AS country, coupon, count(*) AS orders, sum(quantity) AS quantity
FROM orders
GROUP BY customer_id, ship_to.country, coupon;
