-- UNION: each row once, whichever side it is from.

CREATE TABLE impressions (
    impression_id BIGINT,
    shown_at TIMESTAMP,
    ad TEXT,
    person BIGINT,
    cost BIGINT,
    WATERMARK FOR shown_at AS shown_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/impressions.json',
    format = 'json',
    type = 'source'
);

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

SELECT ad, person FROM impressions UNION SELECT ad, person FROM clicks;
