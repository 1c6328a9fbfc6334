-- One window that holds everything and closes only at the end of the input.

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

SELECT ad, tumble(interval '1 day') AS window, count(*) AS clicks
FROM clicks
GROUP BY ad, window;
