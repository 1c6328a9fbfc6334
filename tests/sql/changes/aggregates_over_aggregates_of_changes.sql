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

CREATE VIEW sizes AS SELECT city, count(*) AS n FROM customers GROUP BY city;

SELECT n, count(*) AS cities FROM sizes GROUP BY n;
