-- A view may come before what it reads.
CREATE VIEW large_paid AS SELECT * FROM paid WHERE amount > 50;

CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW paid (number, who, amount) AS (SELECT id, customer, amount FROM orders WHERE status = 'paid');
CREATE OR REPLACE VIEW named AS SELECT who || ' ' || number AS name, amount FROM large_paid;

SELECT * FROM named;
