-- Bounded side input: bids with the value that a table of 10,000 keys gives to the auction.

SELECT b.auction, b.bidder, b.price, b.datetime, s.value
FROM bid b
JOIN (SELECT key, 'value ' || key AS value FROM (SELECT unnest(range(10000)) AS key)) s
    ON b.auction % 10000 = s.key;
