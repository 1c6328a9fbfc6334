-- Top 10: the highest bids of each auction, the earliest of equals first.

SELECT
    auction, bidder, price, channel, url, datetime, extra,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, datetime) AS place
FROM bid
QUALIFY place <= 10;
