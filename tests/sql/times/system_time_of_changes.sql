-- Versions of a changelog: each sale has the rate that was valid when it was made, as worked out by hand:
-- EUR is 1 from 8:00, 3 from 9:00, 5 from 9:03; USD is 2 from 8:00, 4 from 9:02; there is no YEN.

CREATE TABLE sales (
    id BIGINT, cur TEXT, amount BIGINT, sold TIMESTAMP NOT NULL, WATERMARK FOR sold AS sold - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/sales_in.json', format = 'json', type = 'source');
CREATE TABLE rates (
    cur TEXT PRIMARY KEY, rate BIGINT, since TIMESTAMP NOT NULL, WATERMARK FOR since AS since - INTERVAL '1 second'
) WITH (connector = 'single_file', path = '../inputs/rates_cdc.json', format = 'debezium_json', type = 'source');

SELECT s.id, s.amount * r.rate AS euros FROM sales AS s LEFT JOIN rates FOR SYSTEM_TIME AS OF s.sold AS r ON s.cur = r.cur;
