-- Last bid: the latest of each bidder on each auction.

SELECT auction, bidder, price, channel, url, datetime, extra
FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY datetime DESC) = 1;
