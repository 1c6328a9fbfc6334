-- What is only added: rows whose time has come.

CREATE TABLE leases (lease BIGINT, house TEXT, ends TIMESTAMP, rent BIGINT)
WITH (connector = 'single_file', path = '../inputs/leases.json', format = 'json', type = 'source');

SELECT lease, house FROM leases WHERE ends + INTERVAL '7 days' < current_timestamp;
