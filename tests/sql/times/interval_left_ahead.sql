-- The partner comes later by 10 seconds at least; a condition on the right side alone.

CREATE TABLE bids (
    bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP NOT NULL,
    WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = '../inputs/bids.json', format = 'json', type = 'source');
CREATE TABLE quotes (
    quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP NOT NULL,
    WATERMARK FOR since AS since - INTERVAL '15 seconds'
) WITH (connector = 'single_file', path = '../inputs/quotes.json', format = 'json', type = 'source');

SELECT b.bid, q.quote FROM bids AS b LEFT JOIN quotes AS q
ON b.item = q.item AND q.since > b.placed + INTERVAL '10 seconds' AND q.since <= b.placed + INTERVAL '2 minutes' AND q.worth > 8;
