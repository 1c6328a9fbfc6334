-- Window functions over hopping windows.

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

SELECT ad, window, cost, row_number() OVER (PARTITION BY window ORDER BY cost DESC, ad) AS place, cost - lead(cost) OVER (PARTITION BY window ORDER BY cost DESC, ad) AS ahead
FROM (SELECT ad, hop(interval '20 seconds', interval '50 seconds') AS window, sum(cost) AS cost FROM impressions GROUP BY ad, window);
