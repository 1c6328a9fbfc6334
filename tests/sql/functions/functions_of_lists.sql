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
  array_distinct(tags) AS once,
  array_sort(array_remove(tags, 'b')) AS sorted,
  array_concat(tags, ['+']) AS more,
  array_slice(tags, 1, 1) AS slice,
  flatten([[id], [id + 1]]) AS flat,
  range(1, 4) AS numbers,
  string_to_array('p q', ' ') AS words,
  array_max([1, id, 5]) AS most,
  array_remove_all(tags, 'a') AS no_a,
  array_prepend('0', tags) AS front
FROM orders
WHERE id IN (1, 3, 8);
