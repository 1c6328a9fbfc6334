-- Files that are rolled by time: rows wait in the state over several epochs.

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

CREATE TABLE columns (n BIGINT, name TEXT) WITH (
    connector = 'filesystem',
    path = 'out/columns',
    type = 'sink',
    format = 'parquet',
    "rolling_policy.interval" = '1h'
);
INSERT INTO columns SELECT counter, concat('reading ', counter) FROM readings;
