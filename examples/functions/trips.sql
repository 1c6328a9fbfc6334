CREATE TABLE trips (
  id BIGINT, car TEXT, lat1 DOUBLE, lon1 DOUBLE, lat2 DOUBLE, lon2 DOUBLE, at TIMESTAMP NOT NULL, WATERMARK FOR at
) WITH (connector = 'single_file', path = 'trips.json');

CREATE FUNCTION distance(lat1 DOUBLE, lon1 DOUBLE, lat2 DOUBLE, lon2 DOUBLE) RETURNS DOUBLE
LANGUAGE native AS 'libdistance.so', 'distance';

CREATE FUNCTION grid(lat DOUBLE, lon DOUBLE) RETURNS TEXT LANGUAGE rust AS 'grid.rs';

CREATE FUNCTION kilometres(metres DOUBLE) RETURNS TEXT LANGUAGE python AS $$
  return f"{metres / 1000:.1f} km"
$$;

CREATE VIEW measured AS
SELECT id, car, at, distance(lat1, lon1, lat2, lon2) AS metres, grid(lat1, lon1) AS start FROM trips;

SELECT id, kilometres(metres) AS length, start, carrier(car) AS carrier FROM measured;

SELECT cell, count(*) AS trips FROM trips, cells(grid(lat1, lon1), grid(lat2, lon2)) AS cell GROUP BY cell;

SELECT tumble('1 minute') AS minute, busiest(car, metres) AS busiest FROM measured GROUP BY 1;
