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

SELECT city, count(*) AS n, count(credit) AS known, sum(credit) AS total, min(credit) AS least, max(name) AS last, avg(credit) AS mean
FROM customers
GROUP BY city;
