-- Every kind of aggregate over totals that are taken back.
-- approx: 1e-9

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
    orders % 3 AS class,
    count(*) AS n,
    count(distinct orders) AS different,
    avg(amount) AS mean,
    max(amount) AS most,
    min(amount) AS least,
    stddev(amount) AS spread,
    median(amount) AS middle,
    bool_and(amount > 10000) AS all_large,
    bit_xor(orders) AS bits,
    array_agg(customer_id ORDER BY customer_id) AS customers,
    string_agg(CAST(orders AS TEXT), ',' ORDER BY customer_id) AS counts,
    first_value(customer_id ORDER BY amount, customer_id) AS poorest,
    sum(mean) AS means,
    sum(amount) FILTER (WHERE orders > 5) AS large
FROM (
    SELECT customer_id, count(*) AS orders, sum(amount) AS amount, avg(amount) AS mean
    FROM orders
    WHERE customer_id IS NOT NULL
    GROUP BY customer_id
)
GROUP BY orders % 3;
