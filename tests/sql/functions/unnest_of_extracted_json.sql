-- The shape of a feed: documents with lists, counted by element.
CREATE TABLE docs (
  value JSON
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_docs.json',
  format = 'json',
  type = 'source',
  'json.unstructured' = 'true'
);

CREATE VIEW tags AS (SELECT unnest(extract_json(value, '$.user.tags[*]')) AS tag FROM docs);

SELECT tag, count(*) AS n FROM tags GROUP BY tag;
