CREATE FUNCTION f LANGUAGE python AS $$
import json

LIMIT = json.loads("{")

def f(a: int) -> int:
    return a
$$;
SELECT f(1);
