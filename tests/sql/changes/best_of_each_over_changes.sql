-- The first of each city, kept up to date.
CREATE TABLE customers (
  id INT PRIMARY KEY,
  name TEXT,
  city TEXT,
  credit DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_customers_cdc.json',
  format = 'debezium_json',
  type = 'source'
);

SELECT city, name, credit FROM (
  SELECT *, row_number() OVER (PARTITION BY city ORDER BY credit DESC) AS place FROM customers
) WHERE place = 1;
