-- The version of each row: asof early.

CREATE TABLE bids (
    bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP NOT NULL,
    WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = '../inputs/bids.json', format = 'json', type = 'source');
CREATE TABLE quotes (
    quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP NOT NULL,
    WATERMARK FOR since AS since - INTERVAL '15 seconds'
) WITH (connector = 'single_file', path = '../inputs/quotes.json', format = 'json', type = 'source');

SELECT b.bid, q.quote FROM bids AS b ASOF LEFT JOIN quotes AS q ON b.item = q.item AND b.placed >= q.since - INTERVAL '30 seconds';
