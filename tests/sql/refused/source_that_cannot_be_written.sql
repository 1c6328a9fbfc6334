CREATE TABLE impulse WITH (connector = 'impulse', event_rate = 1);
INSERT INTO impulse SELECT 1 AS counter;
