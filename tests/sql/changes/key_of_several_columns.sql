CREATE TABLE stock (
  shop TEXT,
  item TEXT,
  n INT,
  PRIMARY KEY (shop, item)
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_stock_cdc.json',
  format = 'debezium_json',
  type = 'source'
);

SELECT item, sum(n) AS n, count(*) AS shops FROM stock GROUP BY item;
