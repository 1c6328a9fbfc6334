-- approx: 1e-12
CREATE TABLE orders (
  id BIGINT NOT NULL,
  amount DOUBLE,
  quantity INT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  abs(amount) AS abs,
  ceil(amount) AS ceil,
  floor(amount) AS floor,
  round(amount, 1) AS round,
  power(quantity, 2) AS square,
  sqrt(quantity) AS root,
  ln(quantity) AS ln,
  exp(quantity / 10.0) AS exp,
  sin(amount) AS sin,
  atan2(amount, quantity) AS angle,
  signum(amount) AS sign,
  quantity % 3 AS rest,
  quantity / 3 AS whole,
  quantity / 3.0 AS fraction,
  amount / 3 AS third,
  quantity & 6 AS band,
  quantity | 1 AS bor,
  quantity << 2 AS shifted,
  gcd(quantity, 6) AS gcd,
  trunc(amount) AS trunc,
  pi() AS pi,
  to_hex(quantity) AS hex,
  -quantity AS minus
FROM orders;
