-- Intervals as keys, in sets, lists and structs, and as results that change.

CREATE TABLE orders (
    order_id BIGINT,
    customer_id BIGINT,
    placed_at TIMESTAMP,
    amount BIGINT,
    WATERMARK FOR placed_at AS placed_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/orders.json',
    format = 'json',
    type = 'source'
);

CREATE VIEW terms AS
SELECT customer_id, INTERVAL '1 day' * (customer_id % 3) + INTERVAL '-00:30:00' AS term, amount FROM orders;

SELECT term, count(*) AS orders FROM terms GROUP BY term;
SELECT DISTINCT term, ARRAY[term] AS terms FROM terms;
SELECT customer_id, sum(term) AS total, min(term) AS least, max(term) AS most FROM terms GROUP BY customer_id;
SELECT a.term, a.amount, b.amount AS other
FROM (SELECT term, max(amount) AS amount FROM terms GROUP BY term) a
LEFT JOIN (SELECT term, min(amount) AS amount FROM terms GROUP BY term) b ON a.term = b.term;
