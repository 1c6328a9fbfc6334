-- One view of windows, read by two queries.

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

CREATE TABLE big WITH (connector = 'blackhole', type = 'sink');
CREATE TABLE small WITH (connector = 'blackhole', type = 'sink');

CREATE VIEW per_minute AS
SELECT customer_id, tumble(interval '1 minute') AS window, sum(amount) AS amount
FROM orders
GROUP BY customer_id, window;

INSERT INTO big SELECT customer_id, window.start AS opened, amount FROM per_minute WHERE amount > 20000;
INSERT INTO small SELECT window, count(*) AS customers FROM per_minute WHERE amount < 5000 GROUP BY window;
