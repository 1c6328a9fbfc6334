-- Average selling price of a seller: over the last 10 auctions by their winning bid.

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

CREATE VIEW winning AS
SELECT id, seller, price, datetime
FROM (
    SELECT
        a.id AS id,
        a.seller AS seller,
        b.price AS price,
        b.datetime AS datetime,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.datetime) AS place
    FROM auctions a
    JOIN bids b ON a.id = b.auction
    WHERE b.datetime BETWEEN a.datetime AND a.expires
)
WHERE place <= 1;

SELECT seller, avg(price) AS average
FROM (
    SELECT seller, price, row_number() OVER (PARTITION BY seller ORDER BY datetime DESC) AS age
    FROM winning
)
WHERE age <= 10
GROUP BY seller;
