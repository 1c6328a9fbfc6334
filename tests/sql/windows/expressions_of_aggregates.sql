-- Arithmetic over aggregates, keys and the window.

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
    coalesce(coupon, 'none') || '!' AS coupon,
    sum(amount) / count(*) AS mean_amount,
    CASE WHEN max(quantity) > 3 THEN 'bulk' ELSE 'single' END AS kind,
    tumble(interval '4 minutes').end - interval '1 second' AS last_second,
    100 * count(*) FILTER (WHERE status = 'cancelled') / count(*) AS cancelled_percent
FROM orders
GROUP BY coupon, tumble(interval '4 minutes');
