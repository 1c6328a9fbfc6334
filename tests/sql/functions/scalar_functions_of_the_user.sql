-- greet is called for nulls too, longest is not.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  note TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, greet(customer) AS greeting, longest(customer, note) AS longest, Cents(amount) AS cents
FROM orders
WHERE cents(amount) > 500 AND id < 7;
