-- Each window's greatest, joined back to find who has it.

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

CREATE VIEW counts AS
SELECT driver_id, hop(interval '1 minute', interval '3 minutes') AS window, count(*) AS rides
FROM rides
GROUP BY driver_id, window;

SELECT c.driver_id, c.window, c.rides
FROM counts c
JOIN (SELECT window, max(rides) AS most FROM counts GROUP BY window) m ON c.window = m.window AND c.rides = m.most;
