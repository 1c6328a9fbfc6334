-- The environment must have HEADRACE_TEST_INPUT=lang_orders.
CREATE TABLE orders (
  id BIGINT NOT NULL
) WITH (
  connector = 'single_file',
  path = '../inputs/{{ HEADRACE_TEST_INPUT }}.json',
  format = 'json',
  type = 'source'
);

SELECT count(*) AS orders FROM orders;
