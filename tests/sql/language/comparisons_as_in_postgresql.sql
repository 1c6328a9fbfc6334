-- Rows compare value by value with NULL as unknown, intervals by their length, IS DISTINCT FROM binds before AND.

CREATE TABLE readings (
    id BIGINT, a INT, b INT, big BIGINT, f DOUBLE, flag BOOLEAN, s TEXT, ts TIMESTAMP, ts2 TIMESTAMP, d DATE
) WITH (
    connector = 'single_file', path = '../inputs/values.json', format = 'json', type = 'source'
);

SELECT
    id,
    a IS DISTINCT FROM b AND flag AS distinct_and,
    a IS NOT DISTINCT FROM b OR flag AS same_or,
    (a, b) IN ((1, 2), (2, NULL)) AS row_in,
    (a, b) NOT IN ((2, NULL)) AS row_not_in,
    (a, b) = (1, 2) AS row_equal,
    (a, b) <> (1, NULL) AS row_unequal,
    (a, b) < (1, 3) AS row_less,
    (a, b) >= (b, a) AS row_not_less,
    ROW(a, b) IS NOT DISTINCT FROM ROW(2, NULL) AS row_same,
    a BETWEEN SYMMETRIC 3 AND 1 AS symmetric,
    ts - ts2 > INTERVAL '7 days' AS more_than_a_week,
    ts - ts2 BETWEEN INTERVAL '1 day' AND INTERVAL '168 hours' AS a_week_at_most,
    INTERVAL '25 hours' > INTERVAL '1 day' AS longer,
    INTERVAL '1 month' = INTERVAL '30 days' AS as_long,
    s LIKE '50#%' ESCAPE '#' AS percent,
    s LIKE 'a#_c' ESCAPE '#' AS underscore,
    s SIMILAR TO '(5|6)0_' AS similar_to,
    s NOT SIMILAR TO 'a' AS not_similar,
    num_nulls(b, s, d) AS nulls
FROM readings;
