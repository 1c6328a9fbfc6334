-- Readings of three gates, counted per gate and minute.
--
-- The table makes a reading every ten seconds of event time, thirty of them. A real one names another connector, its
-- columns and its event time: `headrace operators` lists the connectors.

CREATE TABLE readings WITH (
  connector = 'impulse',
  message_count = 30,
  start_time = '2026-01-01T09:00:00',
  event_time_interval = '10s'
);

SELECT window.start AS minute, gate, readings FROM (
  SELECT tumble(INTERVAL '1 minute') AS window, counter % 3 AS gate, count(*) AS readings
  FROM readings
  GROUP BY window, gate
);
