-- An updating aggregate over the rows of windows: the window is not among its keys.

CREATE TABLE rides (
    event_time TIMESTAMP,
    event TEXT,
    ride_id BIGINT,
    driver_id BIGINT,
    zone TEXT,
    passengers INT,
    fare DOUBLE,
    paid_with TEXT,
    WATERMARK FOR event_time AS event_time - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/rides.json',
    format = 'json',
    type = 'source'
);

SELECT zone, max(rides) AS busiest, count(*) AS minutes
FROM (SELECT zone, tumble(interval '1 minute') AS window, count(*) AS rides FROM rides GROUP BY zone, window)
GROUP BY zone;
