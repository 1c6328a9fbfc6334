CREATE TABLE impulse (
  counter BIGINT UNSIGNED NOT NULL,
  subtask_index BIGINT UNSIGNED NOT NULL
) WITH (
  connector = 'impulse',
  event_rate = 1000000.0,
  message_count = 5
);

SELECT counter, counter % 2 = 0 AS even FROM impulse;
