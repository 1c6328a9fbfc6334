-- Average price of a category: over the highest bid of each auction while it was open.

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

SELECT category, avg(final) AS average
FROM (
    SELECT a.id AS id, a.category AS category, max(b.price) AS final
    FROM auctions a
    JOIN bids b ON a.id = b.auction
    WHERE b.datetime BETWEEN a.datetime AND a.expires
    GROUP BY a.id, a.category
)
GROUP BY category;
