-- IS DISTINCT FROM binds as a comparison does: AND comes after it.

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

SELECT view_id FROM views
WHERE referrer IS DISTINCT FROM 'mail' AND path = '/cart' OR referrer IS NOT DISTINCT FROM 'search' AND path = '/help';
