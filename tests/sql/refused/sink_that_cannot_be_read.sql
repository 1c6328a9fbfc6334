CREATE TABLE b (id INT) WITH (connector = 'blackhole');
SELECT id FROM b;
