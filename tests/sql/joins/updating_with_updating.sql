-- Totals that change, joined with totals that change.

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

SELECT o.status, o.orders, p.paid
FROM (SELECT status, count(*) AS orders, max(order_id) AS latest FROM orders GROUP BY status) o
JOIN (SELECT order_id, sum(amount) AS paid FROM payments GROUP BY order_id) p ON p.order_id = o.latest - 10;
