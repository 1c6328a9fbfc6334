-- Options with and without quotes, as texts, numbers, booleans and intervals; some are only accepted.
CREATE TABLE orders (
  id BIGINT PRIMARY KEY,
  note TEXT
) WITH (
  'connector' = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  'type' = 'source',
  wait_for_control = 'false',
  idle_micros = 1000000,
  bad_data = 'drop',
  'json.unstructured' = 'false',
  'json.timestamp_format' = 'RFC3339'
);

SELECT id FROM orders WHERE note IS NULL;
