CREATE FUNCTION f LANGUAGE rust AS $$
fn f(x: HashMap<String, i64>) -> i64 { 1 }
$$;
CREATE FUNCTION g LANGUAGE rust AS $$
fn other(x: i64) -> i64 { 1 }
$$;
CREATE FUNCTION h LANGUAGE rust AS $$
async fn h(x: i64) -> i64 { 1 }
$$;
CREATE FUNCTION i LANGUAGE rust AS $$
fn i(x: i64) { }
$$;
SELECT f(1);
