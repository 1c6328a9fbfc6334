CREATE TABLE impulse WITH (connector = 'impulse', event_rate = 'fast', message_count = -1);
SELECT counter FROM impulse;
