-- Rows without partner are in the windows of their own time.

CREATE TABLE bids (
    bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP NOT NULL,
    WATERMARK FOR placed AS placed - INTERVAL '10 seconds'
) WITH (connector = 'single_file', path = '../inputs/bids.json', format = 'json', type = 'source');
CREATE TABLE quotes (
    quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP NOT NULL,
    WATERMARK FOR since AS since - INTERVAL '15 seconds'
) WITH (connector = 'single_file', path = '../inputs/quotes.json', format = 'json', type = 'source');

SELECT window.start AS began, n, met FROM (
    SELECT tumble(INTERVAL '1 minute') AS window, count(*) AS n, count(quote) AS met FROM (
        SELECT b.bid, q.quote FROM bids AS b LEFT JOIN quotes AS q
        ON b.item = q.item AND q.since BETWEEN b.placed - INTERVAL '1 minute' AND b.placed
    ) GROUP BY window
);
