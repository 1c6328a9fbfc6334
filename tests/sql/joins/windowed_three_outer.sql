-- Three windows, two of them by outer joins.

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
SELECT s.ad, s.window.start AS opened, s.shown, c.clicks, p.people
FROM shown s
LEFT JOIN clicked c ON s.window = c.window AND s.ad = c.ad
LEFT JOIN (SELECT ad, tumble(interval '1 minute') AS window, count(distinct person) AS people FROM clicks GROUP BY ad, window) p
    ON p.window = s.window AND p.ad = s.ad AND p.people > 1;
