-- Tumbling, hopping and session windows, a join of windows and a ranking inside of windows.

CREATE TABLE visits (
    visit_id BIGINT,
    visited_at TIMESTAMP,
    who TEXT,
    points BIGINT,
    WATERMARK FOR visited_at AS visited_at - INTERVAL '5 seconds'
) WITH (
    connector = 'single_file',
    path = 'visits.json',
    format = 'json',
    type = 'source'
);

CREATE VIEW tumbled AS
SELECT tumble(INTERVAL '20 seconds') AS window, who, count(*) AS visits, sum(points) AS points,
    count(DISTINCT points) AS different
FROM visits
GROUP BY window, who;

CREATE VIEW best AS
SELECT tumble(INTERVAL '20 seconds') AS window, max(points) AS most
FROM visits
GROUP BY window;

CREATE TABLE tumbling (since TIMESTAMP, who TEXT, visits BIGINT, points BIGINT, different BIGINT)
WITH (connector = 'single_file', path = 'out/tumbling.json', format = 'json', type = 'sink');
INSERT INTO tumbling SELECT window.start, who, visits, points, different FROM tumbled;

CREATE TABLE hopping (since TIMESTAMP, visits BIGINT, mean DOUBLE)
WITH (connector = 'single_file', path = 'out/hopping.json', format = 'json', type = 'sink');
INSERT INTO hopping SELECT window.start, visits, mean FROM (
    SELECT hop(INTERVAL '10 seconds', INTERVAL '30 seconds') AS window, count(*) AS visits, avg(points) AS mean
    FROM visits
    GROUP BY window
);

CREATE TABLE sessions (who TEXT, since TIMESTAMP, until TIMESTAMP, visits BIGINT, ids BIGINT[])
WITH (connector = 'single_file', path = 'out/sessions.json', format = 'json', type = 'sink');
INSERT INTO sessions SELECT who, window.start, window.end, visits, ids FROM (
    SELECT who, session(INTERVAL '8 seconds') AS window, count(*) AS visits,
        array_agg(visit_id ORDER BY visit_id) AS ids
    FROM visits
    GROUP BY who, window
);

CREATE TABLE joined (since TIMESTAMP, who TEXT, points BIGINT, most BIGINT)
WITH (connector = 'single_file', path = 'out/joined.json', format = 'json', type = 'sink');
INSERT INTO joined
SELECT tumbled.window.start, tumbled.who, tumbled.points, best.most
FROM tumbled JOIN best ON tumbled.window = best.window;

CREATE TABLE ranked (since TIMESTAMP, who TEXT, points BIGINT, place BIGINT)
WITH (connector = 'single_file', path = 'out/ranked.json', format = 'json', type = 'sink');
INSERT INTO ranked SELECT window.start, who, points, place FROM (
    SELECT window, who, points, row_number() OVER (PARTITION BY window ORDER BY points DESC, who) AS place
    FROM tumbled
) WHERE place <= 2;
