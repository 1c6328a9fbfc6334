-- A join in parentheses at the beginning of FROM is that join.

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

SELECT a.view_id AS first, b.view_id AS other
FROM ((SELECT view_id, user_name FROM views WHERE path = '/cart') AS a
  LEFT JOIN (SELECT view_id, user_name FROM views WHERE path = '/help') AS b ON a.view_id = b.view_id + 1);
