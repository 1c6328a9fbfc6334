-- Grouping sets: over rows, over windows, over updating rows, over no rows.

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

SELECT status, coupon, count(*) AS n, sum(amount) AS total, grouping(status, coupon) AS missing
FROM orders
GROUP BY CUBE (status, coupon);

SELECT status, tumble(interval '10 minutes') AS window, count(*) AS n
FROM orders
GROUP BY window, ROLLUP (status);

SELECT status, n % 2 AS odd, count(*) AS shops, sum(n) AS total
FROM (SELECT status, customer_id, count(*) AS n FROM orders GROUP BY status, customer_id) AS c
GROUP BY GROUPING SETS ((status, 2), (status), ())
HAVING count(*) > 1;

SELECT status, coupon, sum(amount) AS total, rank() OVER (PARTITION BY grouping(coupon) ORDER BY sum(amount) DESC) AS place
FROM orders
WHERE coupon IS NOT NULL
GROUP BY status, ROLLUP (coupon);

SELECT status, count(*) AS n FROM orders WHERE amount < 0 GROUP BY ROLLUP (status);
