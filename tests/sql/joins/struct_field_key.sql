-- A field of a struct as a key of a join.

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

SELECT a.order_id AS first_order, b.order_id AS second_order, a.ship_to.city AS city
FROM orders a
JOIN orders b ON a.ship_to.city = b.ship_to.city AND a.customer_id = b.customer_id AND a.order_id < b.order_id;
