-- Windows of 5 minutes over windows of one: each result is in the window that its end is in.

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

SELECT zone, tumble(interval '5 minutes') AS window, sum(rides) AS rides, max(rides) AS busiest_minute, count(*) AS minutes
FROM (
    SELECT zone, count(*) AS rides
    FROM rides
    GROUP BY zone, tumble(interval '1 minute')
)
GROUP BY zone, window;
