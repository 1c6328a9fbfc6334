-- Local item suggestion: who sells in category 10 in Oregon, Idaho or California.

SELECT p.name AS name, p.city AS city, p.state AS state, a.id AS id
FROM auction a
JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');
