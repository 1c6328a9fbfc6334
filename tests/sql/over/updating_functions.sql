-- Window functions over all rows of a key: each new row may change the others.

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

SELECT
    ride_id,
    event,
    lag(zone) OVER (PARTITION BY driver_id ORDER BY event_time, ride_id, event) AS zone_before,
    count(*) OVER (PARTITION BY driver_id) AS events,
    dense_rank() OVER (PARTITION BY driver_id ORDER BY passengers) AS rank
FROM rides
WHERE driver_id > 3;
