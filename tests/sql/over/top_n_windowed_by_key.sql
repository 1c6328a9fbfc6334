-- The busiest of each window and zone, without its place.

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

SELECT zone, driver_id, window.start AS opened, rides
FROM (SELECT *, row_number() OVER (PARTITION BY window, zone ORDER BY rides DESC, driver_id DESC) AS place FROM (SELECT zone, driver_id, tumble(interval '2 minutes') AS window, count(*) AS rides, sum(fare) AS fare FROM rides GROUP BY zone, driver_id, window))
WHERE place = 1 AND rides > 1;
