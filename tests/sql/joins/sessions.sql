-- Sessions of two sources meet by their keys.

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

SELECT s.person, s.visit.start AS seen, c.visit.start AS clicked, s.shown, c.clicks
FROM (SELECT person, session(interval '20 seconds') AS visit, count(*) AS shown FROM impressions GROUP BY person, visit) s
JOIN (SELECT person, session(interval '20 seconds') AS visit, count(*) AS clicks FROM clicks GROUP BY person, visit) c
    ON s.person = c.person AND c.visit.start >= s.visit.start AND c.visit.start < s.visit.end;
