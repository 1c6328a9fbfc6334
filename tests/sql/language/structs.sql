CREATE TABLE orders (
  id BIGINT NOT NULL,
  address STRUCT<city TEXT, geo STRUCT<lat DOUBLE, lon DOUBLE>>
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  address.city,
  orders.address.geo.lat,
  address.geo AS place,
  (address).city = 'Oslo' AS in_oslo,
  address['city'] AS again,
  struct(id, address.city) AS pair,
  named_struct('n', id, 'c', address.geo.lon) AS named
FROM orders;
