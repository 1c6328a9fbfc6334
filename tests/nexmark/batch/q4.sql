-- Average price of a category: over the highest bid of each auction while it was open.

SELECT category, avg(final) AS average
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a
    JOIN bid b ON a.id = b.auction
    WHERE b.datetime BETWEEN a.datetime AND a.expires
    GROUP BY a.id, a.category
)
GROUP BY category;
