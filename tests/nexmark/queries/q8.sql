-- Monitor new users: who registered and opened an auction within the same 10 seconds.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 100,
    message_count = 10000,
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

SELECT id, name, window.start AS window_start
FROM (
    SELECT p.id AS id, p.name AS name, p.window AS window
    FROM (
        SELECT id, name, tumble(interval '10 second') AS window
        FROM people
        GROUP BY id, name, window
    ) p
    JOIN (
        SELECT seller, tumble(interval '10 second') AS window
        FROM auctions
        GROUP BY seller, window
    ) a ON p.id = a.seller AND p.window = a.window
);
