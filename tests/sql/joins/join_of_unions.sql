-- A union joined with a filtered subquery.

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

SELECT e.kind, e.ad, c.name
FROM (
    SELECT 'shown' AS kind, ad, person FROM impressions WHERE cost > 40
    UNION ALL
    SELECT 'clicked', ad, person FROM clicks
) e
JOIN (SELECT customer_id, name FROM customers WHERE region <> 'west') c ON c.customer_id = e.person;
