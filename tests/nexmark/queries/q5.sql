-- Hot items: every 2 seconds, the auctions with the most bids of the last 10.

CREATE TABLE nexmark WITH (
    connector = 'nexmark',
    event_rate = 100,
    message_count = 10000,
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

CREATE VIEW counts AS
SELECT auction, count(*) AS num, hop(interval '2 second', interval '10 second') AS window
FROM bids
GROUP BY auction, window;

SELECT auction, num, window.start AS window_start
FROM (
    SELECT c.auction AS auction, c.num AS num, c.window AS window
    FROM counts c
    JOIN (SELECT max(num) AS most, window FROM counts GROUP BY window) m
        ON c.window = m.window AND c.num = m.most
);
