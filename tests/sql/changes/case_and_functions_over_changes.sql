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

CREATE TABLE rated (id INT, label TEXT);
INSERT INTO rated SELECT id, CASE WHEN credit > 9 THEN name || ' is rich' WHEN city IS NULL THEN '?' ELSE lower(city) END FROM customers;

SELECT label, count(*) AS n FROM rated GROUP BY label;
