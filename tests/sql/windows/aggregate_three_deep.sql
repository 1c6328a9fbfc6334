-- Aggregates of aggregates of aggregates, each by window.

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

SELECT window, sum(most) AS sum_of_most, count(*) AS states
FROM (
    SELECT window, status, max(orders) AS most
    FROM (
        SELECT tumble(interval '5 minutes') AS window, status, customer_id, count(*) AS orders
        FROM orders
        GROUP BY window, status, customer_id
    )
    GROUP BY window, status
)
GROUP BY window;
