-- Windows of a minute that start every 20 seconds.

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

SELECT zone, hop(interval '20 seconds', interval '1 minute') AS window, count(*) AS events, sum(fare) AS fare
FROM rides
GROUP BY zone, window;
