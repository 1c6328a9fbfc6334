-- All rides in every 30 seconds.

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

SELECT tumble(interval '30 seconds').start AS opened, count(*) AS events, count(fare) AS fares, sum(fare) AS fare, max(passengers) AS most
FROM rides
GROUP BY tumble(interval '30 seconds');
