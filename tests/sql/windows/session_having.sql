-- Sessions of several keys that are longer than one row.

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

SELECT driver_id, event, session(interval '1 minute') AS window, count(*) AS rides, sum(fare) AS fare
FROM rides
GROUP BY driver_id, event, window
HAVING count(*) > 1;
