-- Rows and totals in one result.

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

SELECT ad, person AS value FROM clicks WHERE person > 12
UNION ALL
SELECT ad, count(*) FROM clicks GROUP BY ad;
