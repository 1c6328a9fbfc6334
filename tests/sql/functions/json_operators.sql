-- A value as text, as JSON, and whether it is there.
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
  value ->> 'price' AS price,
  value -> 'user' ->> 'name' AS name,
  value -> 'list' ->> 1 AS second,
  value ? 'user' AS has_user,
  value -> 'user' ? 'name' AS has_name,
  value->'deep'->'a'->'b'->'c'->>2 AS deep,
  value ->> 0 AS first
FROM docs;
