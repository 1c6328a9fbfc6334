-- Windows of two sources written into one table.

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

CREATE TABLE activity (
    kind TEXT,
    ad TEXT,
    opened TIMESTAMP,
    events BIGINT
) WITH (
    connector = 'blackhole',
    type = 'sink'
);

INSERT INTO activity
SELECT 'shown', ad, tumble(interval '1 minute').start, count(*) FROM impressions GROUP BY ad, tumble(interval '1 minute');

INSERT INTO activity
SELECT 'clicked', ad, tumble(interval '2 minutes').start, count(*) FROM clicks GROUP BY ad, tumble(interval '2 minutes');
