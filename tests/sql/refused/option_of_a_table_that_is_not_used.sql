CREATE TABLE impulse WITH (connector = 'impulse', event_rates = 5);
SELECT 1 AS one;
