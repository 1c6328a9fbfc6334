CREATE FUNCTION f(a BIGINT) RETURNS BIGINT LANGUAGE python AS $$
  if a > 1
      return 2
  return 3
$$;
CREATE FUNCTION g(a BIGINT) RETURNS BIGINT LANGUAGE python AS $$ return a +* 1 $$;
SELECT f(1), g(1);
