-- Rows that end far in the future stand, those that ended long ago do not; without a time none does.

CREATE TABLE leases (lease BIGINT, house TEXT, ends TIMESTAMP, rent BIGINT)
WITH (connector = 'single_file', path = '../inputs/leases.json', format = 'json', type = 'source');

SELECT lease FROM leases WHERE ends > now() - INTERVAL '1 hour';
