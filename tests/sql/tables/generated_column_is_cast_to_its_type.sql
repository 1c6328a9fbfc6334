-- What a path finds is a text; the column is a number.
CREATE TABLE edits (
  length JSON,
  before INT GENERATED ALWAYS AS (extract_json(length, '$.old')[1]) STORED,
  after BIGINT GENERATED ALWAYS AS (length ->> 'new') STORED
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_edits.json',
  format = 'json',
  type = 'source'
);

SELECT before, after, after - before AS growth FROM edits;
