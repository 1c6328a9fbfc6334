-- Rows of windows, filtered by the window and by aggregates.

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

SELECT path, views, extract(minute FROM window.start) AS minute
FROM (SELECT path, tumble(interval '1 minute') AS window, count(*) AS views FROM views GROUP BY path, window)
WHERE window.end > timestamp '2024-05-01T08:03:00' AND views BETWEEN 2 AND 6 AND path LIKE '/item/%';
