-- The three best customers of each coupon, by totals that change.

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

SELECT coupon, customer_id, amount
FROM (
    SELECT *, row_number() OVER (PARTITION BY coupon ORDER BY amount DESC, customer_id) AS place
    FROM (SELECT coupon, customer_id, sum(amount) AS amount FROM orders GROUP BY coupon, customer_id)
)
WHERE place <= 3;
