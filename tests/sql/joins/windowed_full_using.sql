-- A full join of windows with USING: window and key are those that are there, and are aggregated by.

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
SELECT window, count(*) AS ads, count(shown) AS shown, count(clicks) AS clicked, array_agg(ad ORDER BY ad) AS names
FROM shown
FULL JOIN clicked USING (window, ad)
GROUP BY window;
