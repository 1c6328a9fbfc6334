-- What the same words say twice is computed once: the best advertisements of each window.

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

SELECT c.ad, c.num, c.window
FROM (SELECT ad, count(*) AS num, hop(interval '30 seconds', interval '1 minute') AS window FROM impressions GROUP BY ad, window) c
JOIN (SELECT max(num) AS most, window FROM (
        SELECT ad, count(*) AS num, hop(interval '30 seconds', interval '1 minute') AS window FROM impressions GROUP BY ad, window)
    GROUP BY window) m
ON c.window = m.window AND c.num = m.most;
