CREATE TABLE texts (t TEXT) WITH (connector = 'single_file', path = '../inputs/lang_castings.json', format = 'json', type = 'source');

SELECT
  t,
  try_cast(t AS INT) AS number,
  TRY_CAST(t AS DOUBLE) AS real,
  try_cast(t AS TIMESTAMP) AS moment,
  try_cast(t AS BOOLEAN) AS truth,
  arrow_cast(t, 'LargeUtf8') AS large,
  arrow_typeof(arrow_cast(1, 'Int8')) AS kind,
  CAST(3.7 AS INT) AS cut,
  CAST(true AS INT) AS one,
  '7'::bigint + 1 AS eight,
  CAST(1 AS TEXT) || '!' AS loud,
  CAST(12.345 AS DECIMAL(6, 2)) AS exact
FROM texts;
