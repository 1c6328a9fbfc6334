-- LATERAL, and subqueries that read the outer row in other ways than by equalities.

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

SELECT c.customer_id, l.order_id, l.amount
FROM (SELECT DISTINCT customer_id FROM orders WHERE customer_id < 12) AS c
CROSS JOIN LATERAL (
    SELECT order_id, amount FROM orders AS o WHERE o.customer_id = c.customer_id ORDER BY amount DESC, order_id LIMIT 2
) AS l;

SELECT o.order_id, l.n, l.most
FROM orders AS o, LATERAL (SELECT count(*) AS n, max(p.amount) AS most FROM orders AS p WHERE p.customer_id = o.customer_id AND p.amount < o.amount) AS l
WHERE o.order_id < 15;

SELECT o.order_id, (SELECT min(p.amount) FROM orders AS p WHERE p.amount > o.amount) AS next_amount, (SELECT o.amount * 2) AS twice
FROM orders AS o WHERE o.order_id < 15;

SELECT o.order_id, l.d
FROM orders AS o LEFT JOIN LATERAL (SELECT p.amount - o.amount AS d FROM orders AS p WHERE p.coupon = o.coupon AND p.order_id = o.order_id + 1) AS l ON TRUE
WHERE o.order_id < 30;
