-- Windows of 20 seconds that start every 7 seconds.

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

SELECT ad, hop(interval '7 seconds', interval '20 seconds') AS window, count(*) AS shown, sum(cost) AS cost, avg(cost) AS mean
FROM impressions
GROUP BY ad, window;
