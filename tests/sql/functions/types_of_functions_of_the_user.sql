-- Values of every type in the place of Python's own, and whole columns.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  quantity INT,
  note TEXT,
  tags TEXT[],
  address STRUCT<city TEXT, geo STRUCT<lat DOUBLE, lon DOUBLE>>,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, twice(amount) AS twice, shorten(at) AS day, next_hour(at) AS hour, tenth(amount) AS tenth,
  encoded(customer) AS encoded, tags_upper(tags, 1) AS tags FROM orders WHERE id < 7;
SELECT id, described(address).place AS place, described(address).far AS far, moved(address).city AS city,
  moved(address).geo.lat AS lat FROM orders;
