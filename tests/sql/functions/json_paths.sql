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
  extract_json(value, '$.list[*]') AS all,
  extract_json(value, '$.user.name')[1] AS name,
  extract_json_string(value, '$.user.name') AS text,
  get_first_json_object(value, '$.deep.a.b.c') AS first,
  extract_json(value, '$..c[1]') AS anywhere,
  extract_json_string(value, '$[''a key'']') AS odd
FROM docs
WHERE value ? 'user';
