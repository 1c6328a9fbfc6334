-- Keys that are expressions, selected and not.

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

SELECT substr(path, 1, 5) AS section, spent_ms / 1000 AS seconds, tumble(interval '2 minutes').end AS closed, count(*) AS views
FROM views
GROUP BY substr(path, 1, 5), spent_ms / 1000, referrer IS NULL, tumble(interval '2 minutes');
