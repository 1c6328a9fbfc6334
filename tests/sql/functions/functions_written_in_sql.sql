-- Functions that the SQL text itself holds.
CREATE FUNCTION initial(name TEXT) RETURNS TEXT LANGUAGE python AS $$ return name[0].upper() $$;
CREATE OR REPLACE FUNCTION greeting(name TEXT, times BIGINT) RETURNS TEXT
LANGUAGE python CALLED ON NULL INPUT AS $py$
  # A body may have as many lines as it likes; 'quotes' and $$ too.
  if name is None:
      return "hello; stranger"
  return " ".join([f"hello {name}"] * (times or 1))
$py$;
CREATE FUNCTION domain LANGUAGE python AS $$
import re

PATTERN = re.compile(r"(\w+)$")

def last_word(text: str) -> str:
    found = PATTERN.search(text)
    return found[1] if found else ""

def domain(text: str, fallback: str | None) -> str | None:
    return last_word(text) or fallback
$$;
CREATE FUNCTION parts(text TEXT) RETURNS TABLE (part TEXT, length BIGINT) LANGUAGE python AS $$
  for part in text.split():
      yield part, len(part)
$$;
CREATE AGGREGATE FUNCTION spread(numbers BIGINT) RETURNS BIGINT LANGUAGE python AS $$
  return max(numbers) - min(numbers) if numbers else None
$$;
CREATE AGGREGATE FUNCTION joined LANGUAGE python AS $$
class joined:
    texts: str = ""

    def update(self, text: str) -> None:
        self.texts = "".join(sorted(self.texts + text))

    def merge(self, other) -> None:
        self.update(other.texts)

    def finish(self) -> str:
        return self.texts
$$;
CREATE FUNCTION later(number BIGINT) RETURNS STRUCT<number BIGINT, double DOUBLE> LANGUAGE python AS $$
  import asyncio
  await asyncio.sleep(0.001)
  return {"number": number + 1, "double": number * 2}
$$ WITH (ordered = true, timeout = '5 seconds', allowed_in_flight = 10);
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

SELECT id, initial(customer) AS initial, greeting(customer, quantity % 3) AS greeting, domain(note, customer) AS domain
FROM orders;
SELECT id, p.part, length FROM orders, parts(note) AS p WHERE p.length > 2;
SELECT customer, spread(quantity) AS spread, joined(initial(note)) AS joined FROM orders WHERE note <> '' GROUP BY customer;
SELECT id, l.number, l.double FROM (SELECT id, later(quantity) AS l FROM orders) WHERE id > 3;
