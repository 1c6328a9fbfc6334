-- The event time as an option in quotes.

CREATE TABLE readings (
    read_at TIMESTAMP,
    sensor TEXT,
    x DOUBLE
) WITH (
    connector = 'single_file',
    path = '../inputs/readings.json',
    format = 'json',
    type = 'source',
    event_time_field = 'read_at'
);

SELECT sensor, tumble(interval '30 seconds') AS window, count(*) AS readings, count(x) AS values, sum(x) AS total
FROM readings
GROUP BY sensor, window;
