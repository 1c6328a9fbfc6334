-- OFFSET leaves the first of each window out.

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

SELECT zone, tumble(interval '3 minutes') AS window, count(*) AS rides
FROM rides
GROUP BY zone, window
ORDER BY 3, zone NULLS FIRST
LIMIT 2 OFFSET 1;
