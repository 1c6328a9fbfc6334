-- Pass through: what reading alone costs.

SELECT auction, bidder, price, datetime, extra
FROM bid;
