CREATE TABLE bids (
    bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP NOT NULL,
    WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = '../inputs/bids.json', format = 'json', type = 'source');
CREATE TABLE quotes (
    quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP NOT NULL,
    WATERMARK FOR since AS since - INTERVAL '15 seconds'
) WITH (connector = 'single_file', path = '../inputs/quotes.json', format = 'json', type = 'source');

SELECT tumble(INTERVAL '1 minute') AS w, count(*) AS n FROM bids WHERE placed > now() - INTERVAL '1 hour' GROUP BY w;
