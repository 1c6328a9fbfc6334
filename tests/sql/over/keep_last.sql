-- The last event of each driver: row_number() = 1 from the end.

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

SELECT driver_id, event, ride_id, zone
FROM (SELECT *, row_number() OVER (PARTITION BY driver_id ORDER BY event_time DESC, ride_id DESC, event) AS n FROM rides)
WHERE n = 1;
