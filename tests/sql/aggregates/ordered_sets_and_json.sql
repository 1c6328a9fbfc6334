-- Aggregates of ordered sets and of JSON, means of decimals: of rows, of updating rows, in windows.

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

SELECT status,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY amount) AS middle,
    percentile_disc(0.9) WITHIN GROUP (ORDER BY coupon DESC) AS coupon,
    percentile_cont(0.25) WITHIN GROUP (ORDER BY amount) AS quarter,
    percentile_disc([0, 0.3, 1]) WITHIN GROUP (ORDER BY amount) FILTER (WHERE quantity > 1) AS spread,
    mode() WITHIN GROUP (ORDER BY quantity) AS usual
FROM orders GROUP BY status;

SELECT tumble(interval '10 minutes') AS window,
    mode() WITHIN GROUP (ORDER BY status) AS status,
    percentile_cont(0.1) WITHIN GROUP (ORDER BY quantity DESC) AS many,
    jsonb_agg(order_id ORDER BY order_id) FILTER (WHERE quantity > 4) AS orders
FROM orders GROUP BY window;

SELECT n, percentile_disc(0.5) WITHIN GROUP (ORDER BY total) AS middle, avg(CAST(total AS DECIMAL(12, 2))) AS mean
FROM (SELECT customer_id, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer_id) AS c
GROUP BY n;

SELECT status,
    jsonb_object_agg(order_id, jsonb_build_object('coupon', coupon, 'amount', amount / 2.0, 'at', placed_at)) AS listed,
    json_agg(DISTINCT coupon) AS coupons,
    json_agg(ship_to ORDER BY order_id) AS places,
    avg(CAST(quantity AS DECIMAL(6, 1))) AS mean,
    every(quantity > 0) AS sold
FROM orders WHERE order_id < 12 GROUP BY status;

SELECT json_agg(amount) AS nothing, percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS middle,
    mode() WITHIN GROUP (ORDER BY status) AS usual, avg(CAST(amount AS DECIMAL(12, 2))) AS mean
FROM orders WHERE amount < 0;

SELECT order_id, avg(CAST(amount AS DECIMAL(12, 2))) OVER (ORDER BY order_id ROWS 2 PRECEDING) AS moving,
    count(*) OVER (ORDER BY order_id ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING) AS none
FROM orders WHERE order_id < 9;
