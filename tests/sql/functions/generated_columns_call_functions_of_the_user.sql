CREATE TABLE lines (
  value TEXT NOT NULL,
  parsed JSON GENERATED ALWAYS AS (parse_line(value)) STORED,
  event_time TIMESTAMP GENERATED ALWAYS AS (CAST(extract_json_string(parse_line(value), '$.at') AS TIMESTAMP)) STORED,
  WATERMARK FOR event_time
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_log.txt',
  format = 'raw_string',
  type = 'source'
);

SELECT tumble(interval '1 minute') AS window, count(*) AS errors
FROM lines
WHERE extract_json(parsed, '$.code')[1] = '500'
GROUP BY window;
