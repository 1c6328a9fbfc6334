-- A field is called with its column, and is found by its own name.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  address STRUCT<city TEXT, geo STRUCT<lat DOUBLE, lon DOUBLE>>
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW places AS SELECT id, address.city AS name, address.geo AS geo, named_struct('lat', 0.0) AS origin FROM orders WHERE id = 1;

SELECT geo.lat, origin.lat, geo.lon FROM places;
SELECT city FROM (SELECT address.city FROM orders WHERE id = 2);
