-- The rows before and after in the window, with offsets and defaults.

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
    lag(driver_id) OVER (PARTITION BY window ORDER BY rides DESC, zone, driver_id) AS before,
    lead(driver_id, 2) OVER (PARTITION BY window ORDER BY rides DESC, zone, driver_id) AS after_next,
    lag(rides, 1, -1) OVER (PARTITION BY window ORDER BY rides DESC, zone, driver_id) AS rides_before,
    lead(zone, 1, 'none') OVER (PARTITION BY window ORDER BY rides DESC, zone, driver_id) AS zone_after
FROM (SELECT zone, driver_id, tumble(interval '2 minutes') AS window, count(*) AS rides, sum(fare) AS fare FROM rides GROUP BY zone, driver_id, window);
