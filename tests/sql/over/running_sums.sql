-- Sums over frames: all so far, the last three, all of the window.
-- approx: 1e-12

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
    sum(rides) OVER (PARTITION BY window ORDER BY rides DESC, zone, driver_id) AS so_far,
    sum(rides) OVER (PARTITION BY window ORDER BY rides DESC, zone, driver_id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS last_three,
    sum(rides) OVER (PARTITION BY window) AS total,
    count(*) OVER (PARTITION BY window, zone) AS drivers,
    avg(rides) OVER (PARTITION BY window ORDER BY zone, driver_id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS smooth
FROM (SELECT zone, driver_id, tumble(interval '2 minutes') AS window, count(*) AS rides, sum(fare) AS fare FROM rides GROUP BY zone, driver_id, window);
