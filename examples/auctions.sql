-- An auction house: the most wanted auctions of every ten seconds, and the highest bid of each category so far.
--
-- The rows are made by the Nexmark generator, 20 seconds of them, as fast as they can be read. The first query is over
-- windows: rows that are final. The second joins bids with auctions without a window and keeps one row per category:
-- a result that changes, which a terminal shows as a table and a pipe as changes.
--
--     headrace run examples/auctions.sql

CREATE TABLE nexmark WITH (
  connector = 'nexmark',
  event_rate = 1000,
  runtime = '20 seconds',
  base_time = '2026-01-01T09:00:00',
  paced = false
);

CREATE VIEW bids AS SELECT bid.auction AS auction, bid.price AS price FROM nexmark WHERE bid IS NOT NULL;
CREATE VIEW auctions AS SELECT auction.id AS id, auction.category AS category FROM nexmark WHERE auction IS NOT NULL;

SELECT window.start AS since, auction, bids
FROM (
  SELECT *, row_number() OVER (PARTITION BY window ORDER BY bids DESC, auction) AS place
  FROM (
    SELECT tumble(INTERVAL '10 seconds') AS window, auction, count(*) AS bids
    FROM bids
    GROUP BY window, auction
  )
)
WHERE place <= 3;

SELECT auctions.category, max(bids.price) AS highest, count(*) AS bids
FROM bids JOIN auctions ON bids.auction = auctions.id
GROUP BY auctions.category;
