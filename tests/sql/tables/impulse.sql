CREATE TABLE impulse WITH (
  connector = 'impulse',
  event_rate = '1000000',
  message_count = '12',
  event_time_interval = '1000000000',
  start_time = '2024-01-01T00:00:00'
);

SELECT tumble(interval '5 seconds') AS window, count(*) AS events, max(counter) AS last
FROM impulse
GROUP BY 1;
