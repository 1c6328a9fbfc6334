-- row_time() of a window's result is its last nanosecond.

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

SELECT zone, rides, row_time() AS result_time
FROM (SELECT zone, count(*) AS rides FROM rides GROUP BY zone, tumble(interval '2 minutes'));
