-- Pickups with their drop-offs, out of one table.

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

SELECT p.ride_id, p.zone AS from_zone, d.zone AS to_zone, d.fare, d.event_time - p.event_time < INTERVAL '2 minutes' AS short
FROM rides p
JOIN rides d ON p.ride_id = d.ride_id
WHERE p.event = 'pickup' AND d.event = 'dropoff';
