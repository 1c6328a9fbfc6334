-- Event time is computed from a text.

CREATE TABLE clicks (
    clicked_at TEXT,
    ad TEXT,
    clicked TIMESTAMP GENERATED ALWAYS AS (CAST(replace(clicked_at, 'T', ' ') AS TIMESTAMP)) STORED,
    WATERMARK FOR clicked AS clicked - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/clicks.json',
    format = 'json',
    type = 'source'
);

SELECT ad, tumble(interval '1 minute') AS window, max(clicked) AS latest, count(*) AS clicks
FROM clicks
GROUP BY ad, window;
