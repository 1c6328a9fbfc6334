-- A watermark that waits longer for some rows than for others.

CREATE TABLE bridges (
    visit_id BIGINT,
    visited_at TIMESTAMP,
    who TEXT,
    points BIGINT,
    WATERMARK FOR visited_at AS CASE WHEN who = 'p' THEN visited_at - INTERVAL '45 seconds' ELSE visited_at - INTERVAL '25 seconds' END
) WITH (
    connector = 'single_file',
    path = '../inputs/bridges.json',
    format = 'json',
    type = 'source'
);

SELECT hop(interval '5 seconds', interval '10 seconds') AS window, count(*) AS visits
FROM bridges
GROUP BY window;
