-- Rows exactly a gap apart are two sessions, a millisecond less is one; ties, single rows, chains.

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

SELECT who, session(interval '10 seconds') AS window, count(*) AS visits, sum(points) AS points
FROM trips
GROUP BY who, window;
