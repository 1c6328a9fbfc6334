-- Log to a file system: every bid with the day and the minute that would name its folder.

SELECT
    auction, bidder, price, datetime, extra,
    strftime(datetime, '%Y-%m-%d') AS day,
    strftime(datetime, '%H:%M') AS minute
FROM bid;
