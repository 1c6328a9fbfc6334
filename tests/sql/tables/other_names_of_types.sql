-- The same types under the other names that people use.
CREATE TABLE aliases (
  flag BOOL,
  tiny INT1, small INT2, medium INTEGER, other INT4, big INT8,
  single REAL, wide DOUBLE PRECISION, more FLOAT8,
  words STRING, letters CHARACTER VARYING(20), short CHAR(2),
  moment DATETIME,
  price NUMERIC(5, 1),
  list ARRAY<INT>
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_aliases.json',
  format = 'json',
  type = 'source'
);

SELECT * FROM aliases;
