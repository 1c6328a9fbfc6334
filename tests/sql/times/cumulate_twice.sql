-- Results of cumulating windows are counted again in the same windows, and without a key.

CREATE TABLE bids (
    bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP NOT NULL,
    WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = '../inputs/bids.json', format = 'json', type = 'source');
CREATE TABLE quotes (
    quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP NOT NULL,
    WATERMARK FOR since AS since - INTERVAL '15 seconds'
) WITH (connector = 'single_file', path = '../inputs/quotes.json', format = 'json', type = 'source');

SELECT window.start AS began, window.end AS ended, sum(n) AS n, count(*) AS items FROM (
    SELECT cumulate(INTERVAL '90 seconds', INTERVAL '3 minutes') AS window, item, count(DISTINCT price) AS n
    FROM bids GROUP BY window, item
) GROUP BY window;
