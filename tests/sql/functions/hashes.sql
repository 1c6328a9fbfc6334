CREATE TABLE orders (
  id BIGINT NOT NULL,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  md5(status) AS md5,
  encode(sha256(status), 'hex') AS sha256,
  sha256(CAST(id AS TEXT)) AS raw,
  encode(sha512(status), 'hex') = encode(digest(status, 'sha512'), 'hex') AS same,
  encode(sha224(status), 'hex') AS sha224,
  encode(status, 'base64') AS base64,
  decode('0aff', 'hex') AS decoded
FROM orders WHERE id < 4;
