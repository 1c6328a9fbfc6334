-- A full join of totals by the total itself.

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

CREATE TABLE payments (
    payment_id BIGINT,
    order_id BIGINT,
    paid_at TIMESTAMP,
    method TEXT,
    amount BIGINT,
    WATERMARK FOR paid_at AS paid_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/payments.json',
    format = 'json',
    type = 'source'
);

SELECT o.orders, o.customers, p.payments, p.times
FROM (
    SELECT orders, count(*) AS customers
    FROM (SELECT customer_id, count(*) AS orders FROM orders GROUP BY customer_id)
    GROUP BY orders
) o
FULL JOIN (
    SELECT payments, count(*) AS times
    FROM (SELECT order_id, count(*) AS payments FROM payments GROUP BY order_id)
    GROUP BY payments
) p ON o.orders = p.payments;
