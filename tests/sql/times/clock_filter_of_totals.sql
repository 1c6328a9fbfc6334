-- Rows of an updating result pass by the clock too, in WHERE and in HAVING.

CREATE TABLE leases (lease BIGINT, house TEXT, ends TIMESTAMP, rent BIGINT)
WITH (connector = 'single_file', path = '../inputs/leases.json', format = 'json', type = 'source');

SELECT house, last FROM (SELECT house, max(ends) AS last, count(*) AS n FROM leases GROUP BY house)
WHERE last >= current_date AND n > 1;
SELECT house, max(rent) AS rent FROM leases GROUP BY house HAVING min(ends) < now() AND count(*) < 9;
