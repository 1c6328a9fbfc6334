CREATE TABLE moments (
  n INT,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_ancient.json',
  format = 'json',
  type = 'source'
);

SELECT window.start AS start, window.end AS "end", first, last, n
FROM (
  SELECT tumble(interval '1 second') AS window, min(at) AS first, max(at) AS last, count(*) AS n
  FROM moments
  GROUP BY window
);
