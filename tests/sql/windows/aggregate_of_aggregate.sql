-- The busiest zone's count in each window: an aggregate of an aggregate.

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

SELECT window, max(rides) AS most, sum(rides) AS total, count(*) AS zones
FROM (
    SELECT zone, tumble(interval '2 minutes') AS window, count(*) AS rides
    FROM rides
    GROUP BY zone, window
)
GROUP BY window;
