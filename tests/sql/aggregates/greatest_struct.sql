-- The greatest of structures in a window, by their fields from the first to the last.

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

SELECT max(named_struct('spent', spent_ms, 'view', view_id)) AS longest, count(*) AS num,
    tumble(interval '1 minute') AS window
FROM views WHERE spent_ms IS NOT NULL GROUP BY window;
