SELECT CAST('twelve' AS INT) AS n;
