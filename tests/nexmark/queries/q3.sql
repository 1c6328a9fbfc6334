-- Local item suggestion: who sells in category 10 in Oregon, Idaho or California.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 1000,
    message_count = 20000,
    base_time = '2026-01-01T00:00:00',
    paced = false
);

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

CREATE VIEW people AS
SELECT
    person.id AS id,
    person.name AS name,
    person.city AS city,
    person.state AS state,
    person.datetime AS datetime
FROM nexmark
WHERE person IS NOT NULL;

SELECT p.name AS name, p.city AS city, p.state AS state, a.id AS id
FROM auctions a
JOIN people p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');
