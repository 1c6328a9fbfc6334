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
  date_trunc('month', at) AS month,
  date_trunc('hour', at) AS hour,
  date_part('year', at) AS year,
  extract(month FROM at) AS month_number,
  EXTRACT(DOY FROM at) AS day_of_year,
  extract(dow from at) AS day_of_week,
  date_part('second', at) AS second,
  date_bin(INTERVAL '15 minutes', at) AS quarter,
  date_bin(INTERVAL '1 day', at, TIMESTAMP '2000-01-01 12:00:00') AS noon,
  CAST(at AS DATE) AS day,
  at::time AS clock,
  to_char(at, '%d/%m/%Y %H:%M') AS shown
FROM moments;
