-- Windows joined by computed keys.

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

SELECT s.letter, s.window, s.shown, c.clicks
FROM (SELECT person % 5 AS letter, tumble(interval '30 seconds') AS window, count(*) AS shown FROM impressions GROUP BY person % 5, window) s
JOIN (SELECT person, tumble(interval '30 seconds') AS window, count(*) AS clicks FROM clicks GROUP BY person, window) c
    ON s.window = c.window AND s.letter + 1 = c.person - 2;
