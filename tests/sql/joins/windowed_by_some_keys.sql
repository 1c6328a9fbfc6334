-- Shown by advertisement and person, clicked by advertisement and person, brought together by advertisement:
-- both aggregates are shuffled by the key that they are joined by.

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
shown AS (SELECT person, ad, tumble(interval '1 minute') AS window, count(*) AS shown FROM impressions GROUP BY person, ad, window),
clicked AS (SELECT ad AS advertisement, person, tumble(interval '1 minute') AS window, count(*) AS clicks FROM clicks GROUP BY ad, person, window)
SELECT s.ad, s.person AS seen_by, c.person AS clicked_by, s.window, s.shown, c.clicks
FROM shown s
JOIN (SELECT * FROM clicked WHERE clicks > 0) c ON s.window = c.window AND s.ad = c.advertisement;
