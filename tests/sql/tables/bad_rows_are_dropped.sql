CREATE TABLE readings (
  id INT NOT NULL,
  level DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_broken.json',
  format = 'json',
  type = 'source',
  bad_data = 'drop'
);

SELECT id, level FROM readings;
