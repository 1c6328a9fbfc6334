-- The same edges with all rows in one line.

CREATE TABLE trips (
    visit_id BIGINT,
    visited_at TIMESTAMP,
    who TEXT,
    points BIGINT,
    WATERMARK FOR visited_at AS visited_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/trips.json',
    format = 'json',
    type = 'source'
);

SELECT session(interval '10 seconds') AS window, count(*) AS visits, min(visit_id) AS first_visit
FROM trips
GROUP BY window;
