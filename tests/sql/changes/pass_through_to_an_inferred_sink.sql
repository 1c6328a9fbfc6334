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

CREATE TABLE copy WITH (
  connector = 'single_file',
  path = 'copy.json',
  format = 'debezium_json',
  type = 'sink'
);

INSERT INTO copy SELECT id, upper(name) AS name, credit * 2 AS doubled FROM customers;
