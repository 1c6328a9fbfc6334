-- The first element has the number 1; what lies outside is null.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  tags TEXT[]
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  tags[1] AS first,
  tags[-1] AS last,
  tags[9] AS outside,
  tags[1:2] AS two,
  array_length(tags) AS n,
  array_has(tags, 'a') AS has_a,
  array_position(tags, 'a') AS place,
  array_to_string(tags, '+') AS joined,
  array_append(tags, 'end') AS longer,
  [1, 2, 3][2] AS second,
  make_array(id, id * 10) AS made,
  ARRAY['x', 'y'] AS letters
FROM orders
WHERE cardinality(tags) > 0;
