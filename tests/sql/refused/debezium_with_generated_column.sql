CREATE TABLE customers (id INT PRIMARY KEY, name TEXT, loud TEXT GENERATED ALWAYS AS (upper(name)))
WITH (connector = 'single_file', path = '../inputs/lang_customers_cdc.json', format = 'debezium_json', type = 'source');

SELECT id FROM customers;
