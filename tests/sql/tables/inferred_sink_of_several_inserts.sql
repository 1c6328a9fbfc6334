CREATE TABLE orders (
  id BIGINT NOT NULL,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE inferred WITH (
  connector = 'single_file',
  path = 'inferred.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO inferred SELECT id, status AS what FROM orders WHERE id < 3;
INSERT INTO inferred SELECT id + 100, upper(status) FROM orders WHERE id = 3;
