-- Windows over all rows, with aggregates that have no parts.

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

SELECT
    hop(interval '15 seconds', interval '1 minute') AS window,
    count(distinct person) AS people,
    median(cost) AS middle
FROM impressions
GROUP BY window;
