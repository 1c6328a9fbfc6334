-- Highest bid: of every 10 seconds.

SELECT auction, price, bidder, datetime, extra
FROM bid
QUALIFY rank() OVER (PARTITION BY epoch_ns(datetime) // 10_000_000_000 ORDER BY price DESC) = 1;
