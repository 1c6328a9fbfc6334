-- row_time() is the event time of a row, and can be aggregated.

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

SELECT driver_id, tumble(interval '5 minutes') AS window, min(row_time()) AS first_event, max(row_time()) AS last_event
FROM rides
WHERE row_time() >= timestamp '2024-05-01T08:02:00'
GROUP BY driver_id, window;
