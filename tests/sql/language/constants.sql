-- A SELECT without FROM is a stream of one row.
SELECT 1 AS one, 'two' AS two, 3.5 AS three, NULL AS nothing, true AS yes, INTERVAL '1 hour' AS long, TIMESTAMP '2024-01-01' AS moment, DATE '2024-02-29' AS day, X'00ff' AS bytes, 2 + 3 * 4 AS sum, 7 / 2 AS whole, 7 % 4 AS rest, -(-1) AS minus;
