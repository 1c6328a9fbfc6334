SELECT 1 / 0 AS nothing;
