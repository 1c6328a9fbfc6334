-- A call adds an order and a frame to a named window; a named window goes on from another.

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

SELECT view_id,
  sum(view_id) OVER (by_user ORDER BY viewed_at, view_id ROWS 1 PRECEDING) AS last_two,
  count(*) OVER ordered AS so_far,
  max(view_id) OVER (ordered ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS before
FROM views
WINDOW by_user AS (PARTITION BY user_name), ordered AS (by_user ORDER BY viewed_at, view_id);
