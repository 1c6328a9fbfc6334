-- WATERMARK FOR with an expression: rows may be 30 seconds behind.

CREATE TABLE bridges (
    visit_id BIGINT,
    visited_at TIMESTAMP,
    who TEXT,
    points BIGINT,
    WATERMARK FOR visited_at AS (visited_at - INTERVAL '30 seconds')
) WITH (
    connector = 'single_file',
    path = '../inputs/bridges.json',
    format = 'json',
    type = 'source'
);

SELECT who, tumble(interval '10 seconds') AS window, sum(points) AS points
FROM bridges
GROUP BY who, window;
