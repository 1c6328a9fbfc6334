-- Rows of equal windows of two sources, aggregated by their window.

CREATE TABLE impressions (
    impression_id BIGINT,
    shown_at TIMESTAMP,
    ad TEXT,
    person BIGINT,
    cost BIGINT,
    WATERMARK FOR shown_at AS shown_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/impressions.json',
    format = 'json',
    type = 'source'
);

CREATE TABLE clicks (
    clicked_at TIMESTAMP,
    ad TEXT,
    person BIGINT,
    WATERMARK FOR clicked_at AS clicked_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/clicks.json',
    format = 'json',
    type = 'source'
);

WITH
shown AS (SELECT ad, tumble(interval '1 minute') AS window, count(*) AS events FROM impressions GROUP BY ad, window),
clicked AS (SELECT ad, tumble(interval '1 minute') AS window, count(*) AS events FROM clicks GROUP BY ad, window)
SELECT window, sum(events) AS events, count(*) AS parts
FROM (SELECT * FROM shown UNION ALL SELECT * FROM clicked)
GROUP BY window;
