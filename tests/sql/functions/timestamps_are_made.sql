CREATE TABLE moments (
  n INT,
  at TIMESTAMP,
  millis BIGINT,
  text TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_moments.json',
  format = 'json',
  type = 'source'
);

SELECT
  n,
  to_timestamp_millis(millis) AS millis,
  to_timestamp_seconds(millis / 1000) AS seconds,
  from_unixtime(millis / 1000) AS unix,
  to_timestamp(text, '%d.%m.%Y %H:%M') AS parsed,
  CAST('2024-01-02T03:04:05.678Z' AS TIMESTAMP) AS zone,
  to_timestamp('2024-01-02 03:04:05') AS plain,
  make_date(2024, n, 1) AS made,
  CAST(at AS BIGINT) AS nanoseconds
FROM moments;
