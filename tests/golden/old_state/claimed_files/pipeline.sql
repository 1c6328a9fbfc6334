-- Everything that a checkpoint refers to by a path with a checksum: rows that wait for a rolling file, and
-- staged rows that are too many for the metadata.

CREATE TABLE readings WITH (
    connector = 'impulse',
    message_count = 60,
    event_time_interval = '1s',
    start_time = '2026-01-01T09:00:00'
);

CREATE TABLE lines (n BIGINT, gate BIGINT) WITH (
    connector = 'filesystem',
    path = 'out/lines',
    type = 'sink',
    format = 'json',
    "rolling_policy.interval" = '1h',
    "partitioning.fields" = 'gate'
);
INSERT INTO lines SELECT counter, counter % 3 FROM readings;

CREATE TABLE long_lines (n BIGINT, text TEXT) WITH (
    connector = 'single_file', path = 'out/long_lines.json', type = 'sink', format = 'json'
);
INSERT INTO long_lines
SELECT counter, repeat('reading ', CASE WHEN counter = 30 THEN 5000 ELSE 1 END) FROM readings;

CREATE TABLE sums (gate BIGINT, n BIGINT) WITH (
    connector = 'single_file', path = 'out/sums.json', type = 'sink', format = 'debezium_json'
);
INSERT INTO sums SELECT counter % 4, count(*) FROM readings GROUP BY 1;
