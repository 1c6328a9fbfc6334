-- Hopping windows over tumbling ones.

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

SELECT hop(interval '2 minutes', interval '6 minutes') AS window, sum(fare) AS fare, count(*) AS minutes
FROM (SELECT sum(fare) AS fare, tumble(interval '1 minute') AS minute FROM rides GROUP BY minute)
GROUP BY window;
