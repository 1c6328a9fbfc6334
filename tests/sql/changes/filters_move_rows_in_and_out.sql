-- A row that no longer passes is taken back, one that passes now appears.
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

SELECT id, city, credit FROM customers WHERE credit >= 10 AND city <> 'Oslo';
