-- A text is compared with a number as a number is written.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  note TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW texts AS SELECT id::text AS number, note FROM orders;

SELECT number FROM texts WHERE number != 3 AND number IN ('1', '3', '10');
