CREATE FUNCTION slow(name TEXT) RETURNS TEXT LANGUAGE python AS $$ await thing(); return name $$;
CREATE TABLE t (a TEXT, b TEXT GENERATED ALWAYS AS (slow(a))) WITH (connector = 'single_file', path = 'x.json');
SELECT * FROM t;
