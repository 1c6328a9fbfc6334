-- Currency conversion: prices in euros.

SELECT auction, bidder, 0.908::DOUBLE * price AS price, datetime, extra
FROM bid;
