CREATE TABLE customers (id INT, name TEXT)
WITH (connector = 'single_file', path = '../inputs/lang_customers_cdc.json', format = 'debezium_json', type = 'source');

SELECT id FROM customers;
