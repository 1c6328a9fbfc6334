-- Aggregates and joins over the rows that pass, of today and of this year.

CREATE TABLE leases (lease BIGINT, house TEXT, ends TIMESTAMP, rent BIGINT)
WITH (connector = 'single_file', path = '../inputs/leases.json', format = 'json', type = 'source');

SELECT l.house, l.rent, o.leases FROM (
    SELECT house, sum(rent) AS rent FROM leases WHERE ends BETWEEN now() AND now() + INTERVAL '400000 days' GROUP BY house
) AS l JOIN (SELECT house, count(*) AS leases FROM leases WHERE ends < date_trunc('year', now()) GROUP BY house) AS o ON l.house = o.house;
