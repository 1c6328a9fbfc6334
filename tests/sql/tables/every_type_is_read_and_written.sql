-- Every column type, its ends and nulls, read and written.
CREATE TABLE every_type (
  flag BOOLEAN,
  tiny TINYINT,
  small SMALLINT,
  medium INT,
  big BIGINT,
  utiny TINYINT UNSIGNED,
  usmall SMALLINT UNSIGNED,
  umedium INT UNSIGNED,
  ubig BIGINT UNSIGNED,
  single FLOAT,
  wide DOUBLE,
  words TEXT,
  letters VARCHAR,
  moment TIMESTAMP,
  seconds TIMESTAMP(0),
  millis TIMESTAMP(3),
  micros TIMESTAMP(6),
  day DATE,
  clock TIME,
  price DECIMAL(22, 2),
  bytes BYTEA,
  span INTERVAL,
  nested STRUCT<a INT, b STRUCT<c TEXT[], d BOOLEAN>>,
  list BIGINT[],
  grid INT[][],
  doc JSON
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_types.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE copied (
  flag BOOLEAN,
  tiny TINYINT,
  small SMALLINT,
  medium INT,
  big BIGINT,
  utiny TINYINT UNSIGNED,
  usmall SMALLINT UNSIGNED,
  umedium INT UNSIGNED,
  ubig BIGINT UNSIGNED,
  single FLOAT,
  wide DOUBLE,
  words TEXT,
  letters VARCHAR,
  moment TIMESTAMP,
  seconds TIMESTAMP(0),
  millis TIMESTAMP(3),
  micros TIMESTAMP(6),
  day DATE,
  clock TIME,
  price DECIMAL(22, 2),
  bytes BYTEA,
  span INTERVAL,
  nested STRUCT<a INT, b STRUCT<c TEXT[], d BOOLEAN>>,
  list BIGINT[],
  grid INT[][],
  doc JSON
) WITH (
  connector = 'single_file',
  path = 'copied.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO copied SELECT * FROM every_type;
