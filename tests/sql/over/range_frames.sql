-- Frames by value: peers are together.

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
    zone,
    driver_id,
    window.start AS opened,
    rides,
    sum(rides) OVER (PARTITION BY window ORDER BY driver_id RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS up_to,
    count(*) OVER (PARTITION BY window ORDER BY driver_id RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS near
FROM (SELECT zone, driver_id, tumble(interval '2 minutes') AS window, count(*) AS rides, sum(fare) AS fare FROM rides GROUP BY zone, driver_id, window);
