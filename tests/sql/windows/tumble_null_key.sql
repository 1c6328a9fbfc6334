-- Rows without a user are a group of their own.

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

SELECT user_name, tumble(interval '1 minute') AS window, count(*) AS views, count(user_name) AS named
FROM views
WHERE user_name IS NULL OR user_name IN ('ada', 'bob')
GROUP BY user_name, window;
