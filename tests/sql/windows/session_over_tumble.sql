-- Sessions of busy windows: those that follow each other.

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

SELECT session(interval '45 seconds') AS window, count(*) AS busy, sum(views) AS views
FROM (
    SELECT count(*) AS views, tumble(interval '20 seconds') AS part
    FROM views
    GROUP BY part
    HAVING count(*) > 10
)
GROUP BY window;
