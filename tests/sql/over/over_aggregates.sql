-- Window functions over the aggregates of the same SELECT.

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
    tumble(interval '2 minutes') AS window,
    count(*) AS rides,
    rank() OVER (PARTITION BY tumble(interval '2 minutes') ORDER BY count(*) DESC) AS rank,
    sum(count(*)) OVER (PARTITION BY tumble(interval '2 minutes')) AS total
FROM rides
GROUP BY zone, tumble(interval '2 minutes');
