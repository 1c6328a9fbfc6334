-- Orders and their payments: none, one or several; null keys meet nothing.

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

SELECT o.order_id, p.payment_id, o.amount, p.amount AS paid
FROM orders o
JOIN payments p ON o.order_id = p.order_id;
