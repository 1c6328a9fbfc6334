CREATE TABLE colours (name TEXT, code BIGINT);
INSERT INTO colours VALUES ('red', 1), ('green', 2), ('blue', NULL);

VALUES (1, 'a'), (2, 'b');
SELECT n + 1 AS n, upper(t) AS t FROM (VALUES (10, 'x'), (20, NULL)) AS v (n, t);
SELECT name FROM colours WHERE code > 1;
