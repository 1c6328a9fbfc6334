-- DISTINCT over totals: a value goes when its last group leaves it.

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

SELECT DISTINCT views FROM (SELECT user_name, count(*) AS views FROM views GROUP BY user_name);
