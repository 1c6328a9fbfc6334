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

SELECT * FROM letters('ada');
