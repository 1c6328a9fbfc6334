-- Windows of different widths meet by their keys, not by their windows.

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

SELECT o.window.start AS orders_in, p.window.start AS payments_in, o.orders, p.payments
FROM (SELECT tumble(interval '2 minutes') AS window, count(*) AS orders FROM orders GROUP BY window) o
JOIN (SELECT tumble(interval '1 minute') AS window, count(*) AS payments FROM payments GROUP BY window) p
    ON o.window.start = p.window.start;
