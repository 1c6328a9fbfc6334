-- Functions that give rows: in FROM beside a table, first in FROM, and in the SELECT list.

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

SELECT order_id, n FROM orders, generate_series(1, quantity) AS g (n) WHERE order_id < 8;

SELECT order_id, word, place
FROM orders CROSS JOIN unnest([status, coupon]) WITH ORDINALITY AS w (word, place)
WHERE order_id < 5;

SELECT order_id, x
FROM orders LEFT JOIN unnest(CASE WHEN amount > 15000 THEN [amount, customer_id] END) AS u (x) ON TRUE
WHERE order_id < 20;

SELECT kind, count(*) AS n, sum(value) AS total
FROM orders, LATERAL (VALUES ('amount', amount), ('quantity', CAST(quantity AS BIGINT))) AS v (kind, value)
GROUP BY kind;

SELECT x, y, place FROM unnest([1, 2, 3], ['a', 'b']) WITH ORDINALITY AS u (x, y, place);

SELECT day FROM generate_series(TIMESTAMP '2024-01-30', TIMESTAMP '2024-02-02', INTERVAL '1 day') AS g (day);

SELECT e.key, e.value FROM jsonb_each('{"a": 1, "b": {"c": [2, null]}}') AS e;

SELECT item, item ->> 'n' AS n FROM jsonb_array_elements('[{"n": 1}, {"n": "two"}, 3]') AS item;

SELECT value FROM jsonb_array_elements_text('["p", null, 2]');

SELECT k FROM jsonb_object_keys('{"a": 1, "b": 2}') AS k;

SELECT m[1] AS first, m[2] AS second FROM regexp_matches('a1b22c', '([a-z])([0-9]+)', 'g') AS m;

SELECT part FROM regexp_split_to_table('a, b,c', ', *') AS part;

SELECT status, unnest(array_agg(DISTINCT coupon ORDER BY coupon) FILTER (WHERE coupon IS NOT NULL)) AS coupon
FROM orders GROUP BY status;

SELECT order_id, generate_series(1, 2) AS n, regexp_split_to_table('x-y-z', '-') AS part FROM orders WHERE order_id = 3;
