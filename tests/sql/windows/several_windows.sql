-- Several windows over one source, each into a sink of its own.

CREATE TABLE views (
    view_id BIGINT,
    viewed_at TIMESTAMP,
    user_name TEXT,
    path TEXT,
    referrer TEXT,
    device STRUCT<os TEXT, mobile BOOLEAN>,
    spent_ms BIGINT,
    WATERMARK FOR viewed_at AS viewed_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/views.json',
    format = 'json',
    type = 'source'
);

CREATE TABLE minutes WITH (
    connector = 'blackhole',
    type = 'sink'
);

CREATE TABLE hops WITH (
    connector = 'blackhole',
    type = 'sink'
);

CREATE TABLE visits WITH (
    connector = 'blackhole',
    type = 'sink'
);


INSERT INTO minutes
SELECT path, tumble(interval '1 minute') AS window, count(*) AS views FROM views GROUP BY path, window;

INSERT INTO hops
SELECT hop(interval '30 seconds', interval '90 seconds').start AS opened, sum(spent_ms) AS spent
FROM views
GROUP BY hop(interval '30 seconds', interval '90 seconds');

INSERT INTO visits
SELECT user_name, session(interval '20 seconds') AS visit, count(*) AS views FROM views GROUP BY user_name, visit;
