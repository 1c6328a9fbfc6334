CREATE TABLE docs (
  value JSON
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_docs.json',
  format = 'json',
  type = 'source',
  'json.unstructured' = 'true'
);

SELECT
  json_get_str(value, 'user', 'name') AS name,
  json_get_int(value, 'user', 'id') AS id,
  json_get_float(value, 'price') AS price,
  json_get_bool(value, 'ok') AS ok,
  json_get_json(value, 'user') AS user_json,
  json_as_text(value, 'user', 'tags', 0) AS tag,
  json_length(value, 'list') AS n,
  json_length(value) AS keys,
  json_contains(value, 'deep', 'a') AS deep,
  json_get(value, 'user', 'id')::int AS cast_id,
  CAST(value -> 'price' AS DOUBLE) AS cast_price
FROM docs
WHERE json_contains(value, 'user');
