-- The first event of each ride: row_number() = 1.

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

SELECT ride_id, event, event_time
FROM (SELECT *, row_number() OVER (PARTITION BY ride_id ORDER BY event_time, event) AS n FROM rides)
WHERE n = 1;
