CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  status TEXT,
  note TEXT,
  quantity INT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  CASE WHEN amount <= 0 THEN 'none' WHEN amount < 20 THEN 'small' ELSE 'large' END AS size,
  CASE status WHEN 'new' THEN 1 WHEN 'paid' THEN 2 END AS step,
  coalesce(customer, note, 'nobody') AS who,
  NULLIF(note, '') AS note,
  nvl(quantity, 0) AS quantity,
  greatest(quantity, 3) AS most,
  least(id, 4, quantity) AS fewest
FROM orders;
