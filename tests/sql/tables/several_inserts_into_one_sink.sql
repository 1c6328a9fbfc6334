CREATE TABLE orders (
  id BIGINT NOT NULL,
  status TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE merged (
  id BIGINT NOT NULL,
  label TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = 'merged.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO merged SELECT id, 'small', amount FROM orders WHERE amount < 10;
INSERT INTO merged (amount, id) SELECT amount * 2, id FROM orders WHERE amount > 60;
INSERT INTO merged (id, label) SELECT id, status FROM orders WHERE status IN ('lost', 'refund');
