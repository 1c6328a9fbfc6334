-- The event time as an option of the table; rows may be a second behind.

CREATE TABLE rides (
    event_time TIMESTAMP,
    zone TEXT
) WITH (
    connector = 'single_file',
    path = '../inputs/rides.json',
    format = 'json',
    type = 'source',
    event_time_field = event_time
);

SELECT zone, tumble(interval '1 minute') AS window, count(*) AS events
FROM rides
GROUP BY zone, window;
