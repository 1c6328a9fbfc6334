-- A row for each that a function gives; where it gives none, LEFT JOIN keeps the row.
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

SELECT o.id, t.tag, t.place FROM orders AS o, tags_of(o.tags, 'x') AS t WHERE o.id > 1 AND t.place < 2;
SELECT id, letter FROM orders LEFT JOIN LATERAL letters(customer) AS letter ON TRUE WHERE id > 3;
SELECT letter, tumble('1 minute') AS w, count(*) AS n
FROM orders CROSS JOIN TABLE(letters(customer)) AS l (letter) GROUP BY 1, 2;
SELECT most, c, n.number FROM (
  SELECT customer AS c, max(quantity) AS most FROM orders GROUP BY customer
) CROSS JOIN numbers(most) AS n (number) WHERE n.number > 2;
SELECT a.id, p.column1 AS one, p.column2 AS two, l.letters AS letter
FROM orders a CROSS JOIN pairs(a.id, a.quantity) p CROSS JOIN letters(p.column2) l WHERE a.id IN (1, 2, 5);
