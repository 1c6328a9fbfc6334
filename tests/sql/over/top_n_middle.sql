-- The second to the fourth of each group.

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

SELECT status, order_id, amount
FROM (SELECT status, order_id, amount, row_number() OVER (PARTITION BY status ORDER BY amount, order_id) AS place FROM orders)
WHERE place BETWEEN 2 AND 4;
