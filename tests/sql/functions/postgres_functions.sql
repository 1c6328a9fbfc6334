-- Functions and operators of PostgreSQL that DataFusion does not have, or means differently by.

CREATE TABLE readings (id BIGINT, a INT, b INT, f DOUBLE, flag BOOLEAN, s TEXT, ts TIMESTAMP, ts2 TIMESTAMP, d DATE) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT
  id,
  format('%s-%I-%L', a, coalesce(s, 'x'), s) AS formatted,
  concat(flag, '/', a) AS joined,
  regexp_split_to_array(s, '[_%]') AS parts,
  substring(s FROM '([a-z])') AS letter,
  CAST(s AS VARCHAR(2)) AS cut,
  CAST(age(ts, ts2) AS TEXT) AS between_them,
  CAST(ts - ts2 AS TEXT) AS difference,
  extract(epoch FROM ts - ts2) AS seconds,
  extract(century FROM ts) AS century,
  date_trunc('decade', ts) AS decade,
  ts AT TIME ZONE 'UTC' AT TIME ZONE 'Asia/Tokyo' AS tokyo,
  make_timestamp(2024, 1, a + 10, 2, 3, 4.5) AS made,
  CAST(make_interval(days => a, hours => 2) AS TEXT) AS interval_made,
  (ts, INTERVAL '1 day') OVERLAPS (ts2, INTERVAL '40 days') AS overlapping,
  width_bucket(f, 0, 10, 5) AS bucket,
  a = ANY(ARRAY[1, 2, NULL]) AS any_of,
  a > ALL(ARRAY[-10, 0]) AS more_than_all,
  ARRAY[a, b] @> ARRAY[2] AS holds,
  s LIKE ANY (ARRAY['5%', 'a%']) AS like_any
FROM readings;

SELECT
  id,
  jsonb_build_object('a', a, 's', s, 'day', d, 'list', jsonb_build_array(a, b)) AS document,
  jsonb_build_object('a', a) @> '{"a": 1}' AS has_one,
  jsonb_set('{"x": [1, 2]}', '{x,0}', to_jsonb(s)) AS changed,
  '{"x": 1}'::jsonb || jsonb_build_object('y', f) AS both,
  '{"x": 1, "y": 2}'::jsonb - 'x' AS without,
  jsonb_build_array(a, b) -> -1 AS last,
  jsonb_build_object('k', jsonb_build_array(a, s)) #>> '{k,1}' AS path,
  jsonb_typeof(to_jsonb(b)) AS kind
FROM readings;
