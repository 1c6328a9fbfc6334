-- Tumbling windows over hopping ones: the windows that end in each.

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

SELECT tumble(interval '2 minutes') AS window, sum(rides) AS rides, count(*) AS windows
FROM (SELECT count(*) AS rides FROM rides GROUP BY hop(interval '20 seconds', interval '50 seconds'))
GROUP BY window;
