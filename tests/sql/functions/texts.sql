CREATE TABLE orders (
  id BIGINT NOT NULL,
  note TEXT,
  customer TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  upper(note) AS upper,
  length(note) AS length,
  octet_length(note) AS bytes,
  note || '/' || customer AS joined,
  concat(note, '-', customer) AS concat,
  concat_ws(',', note, customer) AS listed,
  substr(note, 2, 3) AS part,
  substring(note FROM 2 FOR 3) AS same_part,
  position('s' IN note) AS place,
  strpos(note, 't') AS t,
  replace(note, 's', 'z') AS replaced,
  reverse(note) AS reversed,
  lpad(customer, 5, '*') AS padded,
  trim(BOTH 't' FROM note) AS trimmed,
  left(note, 2) AS left,
  right(note, 2) AS right,
  split_part(note, ' ', 2) AS second,
  starts_with(note, 'fi') AS fi,
  repeat(customer, 2) AS twice,
  initcap(note) AS title,
  ascii(note) AS code,
  translate(note, 'aeiou', '12345') AS translated
FROM orders
WHERE id IN (1, 2, 3, 6);
