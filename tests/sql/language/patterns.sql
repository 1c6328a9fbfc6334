CREATE TABLE orders (
  id BIGINT NOT NULL,
  note TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT
  id,
  note LIKE '%a%' AS has_a,
  note NOT LIKE 'f%' AS no_f,
  note ILIKE 'IT%' AS it,
  note LIKE 'x\_y' AS underscore,
  note SIMILAR TO '(first|last)' AS either,
  note ~ '^[A-Z]' AS capital,
  note !~ 's' AS no_s,
  note ~* '^g' AS starts_with_g,
  regexp_like(note, '\d+%') AS percent,
  regexp_replace(note, '[aeiou]', '*', 'g') AS starred,
  regexp_match(note, '(\w)(\w+)')[2] AS rest,
  note IS DISTINCT FROM 'first' AS other,
  note IS NOT DISTINCT FROM NULL AS missing
FROM orders;
