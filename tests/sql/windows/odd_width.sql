-- A width that is no divisor of a minute, in milliseconds.

CREATE TABLE clicks (
    clicked_at TIMESTAMP,
    ad TEXT,
    person BIGINT,
    WATERMARK FOR clicked_at AS clicked_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/clicks.json',
    format = 'json',
    type = 'source'
);

SELECT tumble(interval '7500 milliseconds') AS window, count(*) AS clicks, count(distinct person) AS people
FROM clicks
GROUP BY window;
