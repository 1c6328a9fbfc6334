-- An aggregate of hopping windows by their window.

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

SELECT window.start AS opened, min(rides) AS least, avg(rides) AS mean, array_agg(driver_id ORDER BY driver_id) AS drivers
FROM (
    SELECT driver_id, hop(interval '1 minute', interval '3 minutes') AS window, count(*) AS rides
    FROM rides
    GROUP BY driver_id, window
)
GROUP BY window;
