-- The first view of each user in every minute, of rows in windows.

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

SELECT user_name, window.start AS opened, path, views
FROM (
    SELECT *, row_number() OVER (PARTITION BY window, user_name ORDER BY first_view) AS n
    FROM (
        SELECT user_name, path, tumble(interval '1 minute') AS window, count(*) AS views, min(view_id) AS first_view
        FROM views
        GROUP BY user_name, path, window
    )
)
WHERE n = 1;
