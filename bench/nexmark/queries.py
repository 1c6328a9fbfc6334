"""The Nexmark queries in the SQL of Headrace and of DataFusion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bench.nexmark.data import HALF, SMALL, Data, Size

NEXMARK = Data()
JSON = Data(format="json", size=HALF)

COLUMNS = {
    "nexmark": """
    person STRUCT<id BIGINT, name TEXT, email_address TEXT, credit_card TEXT, city TEXT, state TEXT,
        datetime TIMESTAMP, extra TEXT>,
    auction STRUCT<id BIGINT, description TEXT, item_name TEXT, initial_bid BIGINT, reserve BIGINT,
        datetime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra TEXT>,
    bid STRUCT<auction BIGINT, bidder BIGINT, price BIGINT, channel TEXT, url TEXT, datetime TIMESTAMP,
        extra TEXT>,
    datetime TIMESTAMP""",
    "keys": "key BIGINT, ts TIMESTAMP",
}
"""The columns of the tables, in types that all engines have."""

VIEWS = """
CREATE VIEW bids AS
SELECT bid.auction AS auction, bid.bidder AS bidder, bid.price AS price, bid.channel AS channel,
    bid.url AS url, bid.datetime AS datetime, bid.extra AS extra
FROM nexmark WHERE bid IS NOT NULL;
CREATE VIEW auctions AS
SELECT auction.id AS id, auction.item_name AS item_name, auction.description AS description,
    auction.initial_bid AS initial_bid, auction.reserve AS reserve, auction.datetime AS datetime,
    auction.expires AS expires, auction.seller AS seller, auction.category AS category, auction.extra AS extra
FROM nexmark WHERE auction IS NOT NULL;
CREATE VIEW people AS
SELECT person.id AS id, person.name AS name, person.city AS city, person.state AS state,
    person.datetime AS datetime
FROM nexmark WHERE person IS NOT NULL;
"""


@dataclass(frozen=True)
class Query:
    """A query as a stream, and as a batch query where its SQL differs."""

    name: str
    stream: str
    """Several statements are several sinks of one pipeline."""
    batch: str = ""
    data: Data = NEXMARK
    small: Size = SMALL
    """How many rows are compared."""

    def program(self, folder: Path) -> str:
        """The SQL program for Headrace."""
        table = self.data.table
        time = "ts" if table == "keys" else "datetime"
        options = (
            f"connector = 'filesystem', type = 'source', path = '{folder}', format = '{self.data.format}'"
        )
        return f"""CREATE TABLE {table} ({COLUMNS[table]} NOT NULL,
            WATERMARK FOR {time} AS {time} - INTERVAL '1 second') WITH ({options});
            {VIEWS if table == "nexmark" else ""} {self.stream};"""

    def setup(self, folder: Path) -> list[str]:
        """The statements that create the table in DataFusion."""
        table = self.data.table
        columns = COLUMNS[table].replace("TIMESTAMP", "TIMESTAMP(6)")
        kind = self.data.format.upper()
        schema = f"({columns})" if kind == "JSON" else ""
        create = f"CREATE EXTERNAL TABLE {table} {schema} STORED AS {kind} LOCATION '{folder}/'"
        return [create, *(VIEWS.split(";")[:-1] if table == "nexmark" else [])]

    @property
    def batch_statements(self) -> list[str]:
        """The queries for DataFusion."""
        return (self.batch or self.stream).split(";")


def _instant(microseconds: str) -> str:
    return f"arrow_cast({microseconds}, 'Timestamp(Microsecond, None)')"


def _hops(slide: int, width: int, *, key: str = "auction") -> str:
    """In DataFusion: bids in hopping windows, which begin at `started`, in microseconds.

    It counts what windows share first, and then adds that up for each window: faster than to copy every bid
    into all of its windows.
    """
    return f"""SELECT {key}, CAST(sum(num) AS BIGINT) AS num, started FROM (
        SELECT {key}, num, (slide - unnest(range(0, {width // slide}))) * {slide}000000 AS started FROM (
            SELECT {key}, slide, count(*) AS num
            FROM (SELECT *, auction % 10 AS lot, CAST(datetime AS BIGINT) / {slide}000000 AS slide FROM bids)
            GROUP BY {key}, slide))
        GROUP BY {key}, started"""


def _hop(seconds: int) -> Query:
    return Query(
        f"hop{seconds}",
        f"""SELECT auction, num, window.start AS window_start FROM (
            SELECT auction, count(*) AS num, hop(interval '1 second', interval '{seconds} second') AS window
            FROM bids GROUP BY auction, window)""",
        f"SELECT auction, num, {_instant('started')} AS window_start FROM ({_hops(1, seconds)})",
    )


def _counts(name: str, keys: int) -> Query:
    counted = "SELECT key, count(*) AS num FROM keys GROUP BY key"
    return Query(name, counted, data=Data("keys", keys=keys, size=HALF))


_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_FAN_OUT = ";\n".join(
    [
        *(f"SELECT auction, bidder, price FROM bids WHERE channel = '{channel}'" for channel in _CHANNELS),
        "SELECT auction, bidder, price FROM bids WHERE price > 1000000",
    ]
)

_NEXMARK = {
    query.name: query
    for query in (
        Query("q0", "SELECT auction, bidder, price, datetime, extra FROM bids"),
        Query("q1", "SELECT auction, bidder, 0.908 * price AS price, datetime, extra FROM bids"),
        Query("q2", "SELECT auction, price FROM bids WHERE auction % 123 = 0"),
        Query(
            "q3",
            """SELECT p.name AS name, p.city AS city, p.state AS state, a.id AS id
            FROM auctions a JOIN people p ON a.seller = p.id
            WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
        ),
        Query(
            "q4",
            """SELECT category, avg(final) AS average FROM (
                SELECT a.id AS id, a.category AS category, max(b.price) AS final
                FROM auctions a JOIN bids b ON a.id = b.auction
                WHERE b.datetime BETWEEN a.datetime AND a.expires
                GROUP BY a.id, a.category)
            GROUP BY category""",
        ),
        Query(
            "q5",
            """SELECT c.auction AS auction, c.num AS num, c.window.start AS window_start
            FROM (SELECT auction, count(*) AS num, hop(interval '2 second', interval '10 second') AS window
                FROM bids GROUP BY auction, window) c
            JOIN (SELECT max(num) AS most, window FROM (
                    SELECT auction, count(*) AS num, hop(interval '2 second', interval '10 second') AS window
                    FROM bids GROUP BY auction, window)
                GROUP BY window) m
            ON c.window = m.window AND c.num = m.most""",
            f"""WITH counts AS ({_hops(2, 10)})
            SELECT c.auction AS auction, c.num AS num, {_instant("c.started")} AS window_start
            FROM counts c JOIN (SELECT max(num) AS most, started FROM counts GROUP BY started) m
            ON c.started = m.started AND c.num = m.most""",
        ),
        Query(
            "q7",
            """SELECT best.auction AS auction, best.bidder AS bidder, best.price AS price,
                best.datetime AS datetime
            FROM (SELECT max(named_struct('price', price, 'auction', auction, 'bidder', bidder,
                    'datetime', datetime)) AS best, tumble(interval '10 second') AS window
                FROM bids GROUP BY window)""",
            """SELECT b.auction AS auction, b.bidder AS bidder, b.price AS price, b.datetime AS datetime
            FROM bids b
            JOIN (SELECT max(price) AS highest, date_bin(interval '10 second', datetime) AS started
                FROM bids GROUP BY date_bin(interval '10 second', datetime)) m
            ON date_bin(interval '10 second', b.datetime) = m.started AND b.price = m.highest""",
        ),
        Query(
            "q8",
            """SELECT p.id AS id, p.name AS name, p.window.start AS window_start
            FROM (SELECT id, name, tumble(interval '10 second') AS window FROM people
                GROUP BY id, name, window) p
            JOIN (SELECT seller, tumble(interval '10 second') AS window FROM auctions
                GROUP BY seller, window) a
            ON p.id = a.seller AND p.window = a.window""",
            """SELECT DISTINCT p.id AS id, p.name AS name,
                date_bin(interval '10 second', p.datetime) AS window_start
            FROM people p JOIN auctions a ON p.id = a.seller
            AND date_bin(interval '10 second', p.datetime) = date_bin(interval '10 second', a.datetime)""",
        ),
        Query(
            "q9",
            """SELECT id, item_name, seller, category, auction, bidder, price, bid_datetime FROM (
                SELECT a.id AS id, a.item_name AS item_name, a.seller AS seller, a.category AS category,
                    b.auction AS auction, b.bidder AS bidder, b.price AS price, b.datetime AS bid_datetime,
                    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.datetime) AS place
                FROM auctions a JOIN bids b ON a.id = b.auction
                WHERE b.datetime BETWEEN a.datetime AND a.expires)
            WHERE place <= 1""",
        ),
        Query(
            "q11",
            """SELECT bidder, num, window.start AS window_start FROM (
                SELECT bidder, count(*) AS num, session(interval '10 second') AS window
                FROM bids GROUP BY bidder, window)""",
            """SELECT bidder, count(*) AS num, min(datetime) AS window_start FROM (
                SELECT bidder, datetime, sum(begins) OVER (PARTITION BY bidder ORDER BY datetime) AS session
                FROM (SELECT bidder, datetime, CASE WHEN datetime - lag(datetime)
                        OVER (PARTITION BY bidder ORDER BY datetime) < interval '10 second'
                        THEN 0 ELSE 1 END AS begins FROM bids))
            GROUP BY bidder, session""",
        ),
        Query(
            "q12",
            """SELECT bidder, num, window.start AS window_start FROM (
                SELECT bidder, count(*) AS num, tumble(interval '10 second') AS window
                FROM bids GROUP BY bidder, window)""",
            """SELECT bidder, count(*) AS num, date_bin(interval '10 second', datetime) AS window_start
            FROM bids GROUP BY bidder, date_bin(interval '10 second', datetime)""",
        ),
        Query(
            "q15",
            """SELECT to_char(datetime, '%Y-%m-%d') AS day, count(*) AS total_bids,
                count(*) FILTER (WHERE price < 10000) AS rank1_bids,
                count(distinct bidder) AS total_bidders,
                count(distinct auction) AS total_auctions
            FROM bids GROUP BY to_char(datetime, '%Y-%m-%d')""",
        ),
        Query(
            "q17",
            """SELECT auction, to_char(datetime, '%Y-%m-%d') AS day, count(*) AS total_bids,
                count(*) FILTER (WHERE price < 10000) AS rank1_bids,
                count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
                count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
                min(price) AS min_price, max(price) AS max_price, sum(price) AS sum_price
            FROM bids GROUP BY auction, to_char(datetime, '%Y-%m-%d')""",
        ),
        Query(
            "q18",
            """SELECT auction, bidder, price, datetime FROM (
                SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY datetime DESC) AS age
                FROM bids)
            WHERE age <= 1""",
        ),
        Query(
            "q19",
            """SELECT auction, bidder, price, datetime FROM (
                SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, datetime) AS place
                FROM bids)
            WHERE place <= 10""",
        ),
        Query(
            "q20",
            """SELECT b.auction AS auction, b.bidder AS bidder, b.price AS price, b.datetime AS bid_datetime,
                a.item_name AS item_name, a.seller AS seller, a.datetime AS auction_datetime
            FROM bids b JOIN auctions a ON b.auction = a.id
            WHERE a.category = 10""",
        ),
        _hop(5),
        _hop(60),
        Query(
            "hop3600",
            """SELECT lot, num, window.start AS window_start FROM (
                SELECT auction % 10 AS lot, count(*) AS num,
                    hop(interval '1 second', interval '3600 second') AS window
                FROM bids GROUP BY auction % 10, window)""",
            f"""SELECT lot, num, {_instant("started")} AS window_start
            FROM ({_hops(1, 3600, key="lot")})""",
        ),
        Query("fanout", _FAN_OUT),
    )
}

QUERIES = {
    **_NEXMARK,
    "q1 json": replace(_NEXMARK["q1"], name="q1 json", data=JSON),
    "q5 json": replace(_NEXMARK["q5"], name="q5 json", data=JSON),
    "stateful": replace(_counts("stateful", 100_000), small=Size(4, 5_000, 1)),
    "keys10k": _counts("keys10k", 10_000),
    "keys1m": _counts("keys1m", 1_000_000),
    "keys10m": _counts("keys10m", 10_000_000),
}
