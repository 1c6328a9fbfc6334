-- CROSS JOIN with the window in WHERE.

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
shown AS (SELECT ad, tumble(interval '1 minute') AS window, count(*) AS shown, sum(cost) AS cost FROM impressions GROUP BY ad, window),
clicked AS (SELECT ad, tumble(interval '1 minute') AS window, count(*) AS clicks FROM clicks GROUP BY ad, window)
SELECT s.ad AS shown_ad, c.ad AS clicked_ad, s.window
FROM shown s
CROSS JOIN clicked c
WHERE s.window = c.window AND s.ad <> c.ad;
