-- row_time() selected without any window.

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

SELECT ad, person, row_time() AS clicked, row_time() = clicked_at AS same FROM clicks WHERE person < 5;
