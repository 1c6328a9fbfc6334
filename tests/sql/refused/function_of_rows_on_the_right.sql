CREATE FUNCTION letters(name TEXT) RETURNS TABLE (letter TEXT) LANGUAGE python AS $$ yield from name $$;
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  quantity INT,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT * FROM orders RIGHT JOIN letters(customer) AS l ON TRUE;
SELECT * FROM orders JOIN letters(customer) AS l ON l.letter = 'a';
SELECT * FROM orders, letters(customer) AS l (a, b);
SELECT * FROM orders, letters(customer, id) AS l;
SELECT * FROM orders, letters(nobody) AS l;
