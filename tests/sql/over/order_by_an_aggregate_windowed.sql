-- ORDER BY an aggregate that is not selected, in each window.

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

SELECT zone, tumble(interval '3 minutes') AS window
FROM rides
GROUP BY zone, window
ORDER BY count(*) DESC, max(ride_id), window.start
LIMIT 1;
