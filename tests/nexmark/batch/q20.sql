-- Expansion: bids with their auction, for one category.

SELECT
    b.auction, b.bidder, b.price, b.channel, b.url, b.datetime AS bid_datetime, b.extra AS bid_extra,
    a.item_name, a.description, a.initial_bid, a.reserve, a.datetime AS auction_datetime, a.expires, a.seller,
    a.category, a.extra AS auction_extra
FROM bid b
JOIN auction a ON b.auction = a.id
WHERE a.category = 10;
