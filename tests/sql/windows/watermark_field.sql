-- A generated column is the watermark.

CREATE TABLE bridges (
    visit_id BIGINT,
    visited_at TIMESTAMP,
    who TEXT,
    points BIGINT,
    waited TIMESTAMP GENERATED ALWAYS AS (visited_at - INTERVAL '40 seconds') STORED
) WITH (
    connector = 'single_file',
    path = '../inputs/bridges.json',
    format = 'json',
    type = 'source',
    event_time_field = visited_at,
    watermark_field = waited
);

SELECT who, tumble(interval '10 seconds') AS window, count(*) AS visits
FROM bridges
GROUP BY who, window;
