-- A row later than the watermark allows is left out.
CREATE TABLE late (
  n INT,
  at TIMESTAMP NOT NULL,
  slack INTERVAL,
  WATERMARK FOR at AS (at - INTERVAL '1 minute' - slack)
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_slack.json',
  format = 'json',
  type = 'source'
);

SELECT tumble(interval '1 minute').start AS start, sum(n) AS n FROM late GROUP BY tumble(interval '1 minute');
