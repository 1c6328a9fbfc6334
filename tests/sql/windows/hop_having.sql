-- Hopping windows, of which few are left.

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

SELECT person, hop(interval '10 seconds', interval '25 seconds').end AS closed, max(cost) AS dearest
FROM impressions
GROUP BY person, hop(interval '10 seconds', interval '25 seconds')
HAVING count(*) > 2;
