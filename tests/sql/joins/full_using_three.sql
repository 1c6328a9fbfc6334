-- Full joins of three tables with USING: each finds the key that is there so far.

CREATE TABLE impressions (
    impression_id BIGINT,
    shown_at TIMESTAMP,
    ad TEXT,
    person BIGINT,
    cost BIGINT,
    WATERMARK FOR shown_at AS shown_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/impressions.json',
    format = 'json',
    type = 'source'
);

CREATE TABLE clicks (
    clicked_at TIMESTAMP,
    ad TEXT,
    person BIGINT,
    WATERMARK FOR clicked_at AS clicked_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/clicks.json',
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

SELECT *
FROM (SELECT person AS id, cost FROM impressions WHERE person < 6 AND cost > 30) i
FULL JOIN (SELECT person + 3 AS id, ad FROM clicks WHERE person < 6) k USING (id)
FULL JOIN (SELECT customer_id AS id, name FROM customers WHERE customer_id BETWEEN 4 AND 12) c USING (id);
