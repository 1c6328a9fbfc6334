CREATE TABLE lines (
  value TEXT NOT NULL,
  words INT GENERATED ALWAYS AS (cardinality(string_to_array(value, ' '))) STORED
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_lines.txt',
  format = 'raw_string',
  type = 'source'
);

SELECT value, words FROM lines WHERE value <> '';
