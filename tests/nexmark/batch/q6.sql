-- Average selling price of a seller: over the last 10 auctions by their winning bid.

WITH winning AS (
    SELECT a.id, a.seller, b.price, b.datetime
    FROM auction a
    JOIN bid b ON a.id = b.auction
    WHERE b.datetime BETWEEN a.datetime AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.datetime) = 1
)
SELECT seller, avg(price) AS average
FROM (
    SELECT seller, price
    FROM winning
    QUALIFY row_number() OVER (PARTITION BY seller ORDER BY datetime DESC) <= 10
)
GROUP BY seller;
