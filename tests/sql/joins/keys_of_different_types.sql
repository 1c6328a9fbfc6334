-- An INT and a BIGINT, and a number and a text, meet by value.

CREATE TABLE orders (
    order_id BIGINT,
    placed_at TIMESTAMP,
    amount BIGINT,
    quantity INT,
    WATERMARK FOR placed_at AS placed_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/orders.json',
    format = 'json',
    type = 'source'
);

CREATE TABLE impressions (
    impression_id BIGINT,
    shown_at TIMESTAMP,
    person BIGINT,
    cost BIGINT,
    WATERMARK FOR shown_at AS shown_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/impressions.json',
    format = 'json',
    type = 'source'
);

SELECT o.order_id, i.impression_id
FROM orders o
JOIN impressions i ON o.quantity = i.person AND CAST(o.order_id AS TEXT) = CAST(i.impression_id AS TEXT);
