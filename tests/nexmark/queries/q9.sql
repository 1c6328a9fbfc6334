-- Winning bids: the highest bid of each auction while it was open, the earliest of equals.

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
    id, item_name, description, initial_bid, reserve, datetime, expires, seller, category, extra,
    auction, bidder, price, bid_datetime, bid_extra
FROM (
    SELECT
        a.id AS id,
        a.item_name AS item_name,
        a.description AS description,
        a.initial_bid AS initial_bid,
        a.reserve AS reserve,
        a.datetime AS datetime,
        a.expires AS expires,
        a.seller AS seller,
        a.category AS category,
        a.extra AS extra,
        b.auction AS auction,
        b.bidder AS bidder,
        b.price AS price,
        b.datetime AS bid_datetime,
        b.extra AS bid_extra,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.datetime) AS place
    FROM auctions a
    JOIN bids b ON a.id = b.auction
    WHERE b.datetime BETWEEN a.datetime AND a.expires
)
WHERE place <= 1;
