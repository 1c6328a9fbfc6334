CREATE INDEX i ON orders (id);
SELECT 1;
