-- Winning bids: the highest bid of each auction while it was open, the earliest of equals.

SELECT
    a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.datetime, a.expires, a.seller, a.category, a.extra,
    b.auction, b.bidder, b.price, b.datetime AS bid_datetime, b.extra AS bid_extra
FROM auction a
JOIN bid b ON a.id = b.auction
WHERE b.datetime BETWEEN a.datetime AND a.expires
QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.datetime) = 1;
