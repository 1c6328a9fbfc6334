-- Expansion: bids with their auction, for one category.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 1000,
    message_count = 5000,
    base_time = '2026-01-01T00:00:00',
    paced = false
);

CREATE VIEW bids AS
SELECT
    bid.auction AS auction,
    bid.bidder AS bidder,
    bid.price AS price,
    bid.channel AS channel,
    bid.url AS url,
    bid.datetime AS datetime,
    bid.extra AS extra
FROM nexmark
WHERE bid IS NOT NULL;

CREATE VIEW auctions AS
SELECT
    auction.id AS id,
    auction.item_name AS item_name,
    auction.description AS description,
    auction.initial_bid AS initial_bid,
    auction.reserve AS reserve,
    auction.datetime AS datetime,
    auction.expires AS expires,
    auction.seller AS seller,
    auction.category AS category,
    auction.extra AS extra
FROM nexmark
WHERE auction IS NOT NULL;

SELECT
    b.auction AS auction,
    b.bidder AS bidder,
    b.price AS price,
    b.channel AS channel,
    b.url AS url,
    b.datetime AS bid_datetime,
    b.extra AS bid_extra,
    a.item_name AS item_name,
    a.description AS description,
    a.initial_bid AS initial_bid,
    a.reserve AS reserve,
    a.datetime AS auction_datetime,
    a.expires AS expires,
    a.seller AS seller,
    a.category AS category,
    a.extra AS auction_extra
FROM bids b
JOIN auctions a ON b.auction = a.id
WHERE a.category = 10;
