-- A table without a connector holds what is inserted, and can be read several times.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE large (id BIGINT, who TEXT, amount FLOAT);

INSERT INTO large SELECT id, customer, amount FROM orders WHERE amount >= 30;

CREATE TABLE names WITH (
  connector = 'single_file',
  path = 'names.json',
  format = 'json',
  type = 'sink'
);

CREATE TABLE amounts WITH (
  connector = 'single_file',
  path = 'amounts.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO names SELECT who FROM large WHERE who IS NOT NULL;
INSERT INTO amounts SELECT id, amount FROM large;
