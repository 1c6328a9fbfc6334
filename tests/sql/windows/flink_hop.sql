-- Flink's HOP in FROM, with named arguments, an alias, WHERE and HAVING.

CREATE TABLE readings (
    reading_id BIGINT,
    read_at TIMESTAMP NOT NULL,
    sensor TEXT,
    x DOUBLE,
    flags BIGINT,
    WATERMARK FOR read_at AS read_at - INTERVAL '1 second'
) WITH (
    connector = 'single_file',
    path = '../inputs/readings.json',
    format = 'json',
    type = 'source'
);

SELECT w.window_start AS began, w.sensor, count(*) AS n
FROM TABLE(HOP(
    DATA => TABLE readings, TIMECOL => DESCRIPTOR(read_at),
    SLIDE => INTERVAL '1' MINUTE, SIZE => INTERVAL '3' MINUTE
)) AS w
WHERE w.flags IS NOT NULL
GROUP BY w.window_start, w.window_end, w.sensor
HAVING count(*) > 1;
