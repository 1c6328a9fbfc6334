-- Two left joins after each other, the second by a column of the first.

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

CREATE TABLE customers (
    customer_id BIGINT,
    name TEXT,
    tier TEXT,
    region TEXT,
    joined_at TIMESTAMP,
    WATERMARK FOR joined_at AS joined_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/customers.json',
    format = 'json',
    type = 'source'
);

SELECT p.payment_id, o.order_id, c.name
FROM payments p
LEFT JOIN orders o ON o.order_id = p.order_id AND o.status <> 'cancelled'
LEFT JOIN customers c ON c.customer_id = o.customer_id;
