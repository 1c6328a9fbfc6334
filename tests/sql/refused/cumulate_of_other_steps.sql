CREATE TABLE bids (
    bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP NOT NULL,
    WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = '../inputs/bids.json', format = 'json', type = 'source');
CREATE TABLE quotes (
    quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP NOT NULL,
    WATERMARK FOR since AS since - INTERVAL '15 seconds'
) WITH (connector = 'single_file', path = '../inputs/quotes.json', format = 'json', type = 'source');

SELECT cumulate(INTERVAL '2 minutes', INTERVAL '3 minutes') AS w, count(*) AS n FROM bids GROUP BY w;
