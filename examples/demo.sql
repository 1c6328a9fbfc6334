-- What `make demo` runs: sensors at three gates, counted and averaged per gate and two seconds.
--
-- The table makes 500 readings a second for ten seconds. Event time is when a reading was made; nothing else is said
-- about it, so the watermark is one second behind. A window is shown by the epoch whose rows pass its end. The source
-- has an end: then the last windows close, and the run is finished.
--
--     headrace run examples/demo.sql

CREATE TABLE sensors WITH (connector = 'impulse', event_rate = 500, message_count = 5000, align = '2s');

CREATE VIEW readings AS
SELECT
  ['north', 'north', 'north', 'south', 'south', 'weir'][counter % 6 + 1] AS gate,
  40 + 15 * sin(counter / 900.0) + counter % 7 AS flow
FROM sensors;

SELECT window.start AS since, gate, readings, round(mean_flow, 2) AS mean_flow
FROM (
  SELECT tumble(INTERVAL '2 seconds') AS window, gate, count(*) AS readings, avg(flow) AS mean_flow
  FROM readings
  GROUP BY window, gate
);
