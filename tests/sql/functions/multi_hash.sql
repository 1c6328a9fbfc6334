-- The same values give the same text, others another, whatever their types.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW hashed AS SELECT id, customer, status, multi_hash(customer, status) AS hash, multi_hash(id) AS id_hash FROM orders;

SELECT a.id AS a, b.id AS b, length(a.hash) AS length, a.id_hash = b.id_hash AS same_id
FROM hashed a JOIN hashed b ON a.hash = b.hash
WHERE a.id <= b.id;
