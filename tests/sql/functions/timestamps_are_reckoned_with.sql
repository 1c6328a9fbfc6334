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
  at + INTERVAL '1 day 2 hours' AS later,
  at - INTERVAL '1' MONTH AS month_before,
  at - INTERVAL '500 milliseconds' AS half,
  at > TIMESTAMP '2000-01-01 00:00:00' AS recent,
  at BETWEEN '1999-01-01' AND '2001-01-01' AS around,
  CAST(at AS DATE) - DATE '1969-07-19' AS days,
  CAST(at AS DATE) + INTERVAL '1 day' AS tomorrow,
  date_trunc('day', at) = date_trunc('day', at + INTERVAL '1 minute') AS same_day
FROM moments;
