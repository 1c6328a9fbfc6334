-- Pickups of each zone in every minute.

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

SELECT zone, sum(count) AS pickups, window.start AS opened, window.end AS closed
FROM (
    SELECT zone, count(*) AS count, tumble(interval '1 minute') AS window
    FROM rides
    WHERE event = 'pickup'
    GROUP BY zone, window
)
GROUP BY zone, window;
