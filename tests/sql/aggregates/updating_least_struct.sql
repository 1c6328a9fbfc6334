-- The least of structures for each person, of some of the rows.

CREATE TABLE views (
    view_id BIGINT,
    viewed_at TIMESTAMP,
    user_name TEXT,
    path TEXT,
    referrer TEXT,
    device STRUCT<os TEXT, mobile BOOLEAN>,
    spent_ms BIGINT,
    WATERMARK FOR viewed_at AS viewed_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/views.json',
    format = 'json',
    type = 'source'
);

SELECT user_name, min(named_struct('path', path, 'view', view_id)) FILTER (WHERE view_id % 2 = 0) AS first_path, count(*) AS num
FROM views WHERE path IS NOT NULL GROUP BY user_name;
