-- Joined sessions of an aggregate that needs all rows.

CREATE TABLE bridges (
    visit_id BIGINT,
    visited_at TIMESTAMP,
    who TEXT,
    points BIGINT,
    WATERMARK FOR visited_at AS visited_at - INTERVAL '30 seconds'
) WITH (
    connector = 'single_file',
    path = '../inputs/bridges.json',
    format = 'json',
    type = 'source'
);

SELECT
    who,
    session(interval '10 seconds').start AS opened,
    count(distinct points) AS different,
    array_agg(visit_id ORDER BY visit_id) AS visits
FROM bridges
GROUP BY who, session(interval '10 seconds');
