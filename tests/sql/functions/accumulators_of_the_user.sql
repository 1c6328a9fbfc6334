-- Accumulators: merged where they can be, over all rows where not, with rows taken back.
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

CREATE VIEW totals AS SELECT customer, sum(quantity) AS bought, count(*) AS orders FROM orders GROUP BY customer;

SELECT tumble('30 seconds') AS w, weighted(amount, quantity) AS mean, longest(note) AS longest FROM orders GROUP BY 1;
SELECT customer, hop('20 seconds', '40 seconds') AS w, weighted(amount, quantity) AS mean FROM orders GROUP BY 1, 2;
SELECT customer, session('20 seconds') AS w, weighted(amount, quantity) FILTER (WHERE amount > 0) AS mean
FROM orders GROUP BY 1, 2;
SELECT customer, weighted(amount, quantity) AS mean, first_note(note) AS first FROM orders GROUP BY customer;
SELECT orders, weighted(CAST(bought AS DOUBLE), orders) AS mean, distinct_values(bought) AS bought
FROM totals GROUP BY orders;
SELECT longest(customer) AS longest, weighted(bought, 1) AS mean, count(*) AS n FROM totals WHERE bought > 2;
