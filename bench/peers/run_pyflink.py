"""`run_pyflink.py QUERY …`: a Nexmark query in PyFlink's SQL, on a cluster inside this process.

Streaming mode, event time with a watermark of one second, 2 slots, state on the heap, objects reused, small
batches in front of updating aggregates as Flink's own Nexmark has them; no checkpoints. Flink reads no times
within structs, and gives files to its readers in no order, so that events come late and are dropped: the
events become two flat Parquet files once, one for each reader. What is counted is the time of the job on the
cluster; the first round compiles.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

sys.path.append(str(Path(__file__).parents[2]))

from bench.peers.task import CORES, Batches, Task, answer, flat

ROUNDS = 3
TABLES = """
CREATE TABLE nexmark (
    person_id BIGINT, person_name STRING, person_city STRING, person_state STRING,
    auction_id BIGINT, auction_item_name STRING, auction_expires TIMESTAMP(6), auction_seller BIGINT,
    auction_category BIGINT,
    bid_auction BIGINT, bid_bidder BIGINT, bid_price BIGINT, bid_extra STRING,
    `datetime` TIMESTAMP(6),
    rowtime AS CAST(`datetime` AS TIMESTAMP(3)),
    WATERMARK FOR rowtime AS rowtime - INTERVAL '1' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true');
CREATE VIEW bids AS
SELECT rowtime, bid_auction AS auction, bid_bidder AS bidder, bid_price AS price, `datetime`,
    bid_extra AS extra
FROM nexmark WHERE bid_auction IS NOT NULL;
CREATE VIEW auctions AS
SELECT rowtime, auction_id AS id, auction_item_name AS item_name, `datetime`, auction_expires AS expires,
    auction_seller AS seller, auction_category AS category
FROM nexmark WHERE auction_id IS NOT NULL;
CREATE VIEW people AS
SELECT rowtime, person_id AS id, person_name AS name, person_city AS city, person_state AS state
FROM nexmark WHERE person_id IS NOT NULL
"""


def _hop(slide: int, width: int) -> str:
    size = f"INTERVAL '{slide}' SECOND, INTERVAL '{width}' SECOND"
    return f"""SELECT auction, count(*) AS num, window_start, window_end
        FROM TABLE(HOP(TABLE bids, DESCRIPTOR(rowtime), {size}))
        GROUP BY auction, window_start, window_end"""


def _tumble(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))"


_DAY = "DATE_FORMAT(`datetime`, 'yyyy-MM-dd')"

QUERIES = {
    "q0": "SELECT auction, bidder, price, `datetime`, extra FROM bids",
    "q1": "SELECT auction, bidder, 0.908E0 * price AS price, `datetime`, extra FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id
        FROM auctions a JOIN people p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, avg(CAST(final AS DOUBLE)) AS average FROM (
            SELECT a.id, a.category, max(b.price) AS final
            FROM auctions a JOIN bids b ON a.id = b.auction
            WHERE b.`datetime` BETWEEN a.`datetime` AND a.expires
            GROUP BY a.id, a.category)
        GROUP BY category""",
    "q5": f"""WITH counts AS ({_hop(2, 10)})
        SELECT c.auction, c.num, c.window_start
        FROM counts c JOIN (
            SELECT max(num) AS most, window_start, window_end FROM counts GROUP BY window_start, window_end) m
        ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most""",
    "q7": f"""SELECT auction, bidder, price, `datetime` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
            FROM {_tumble("bids")})
        WHERE place <= 1""",
    "q8": f"""SELECT p.id, p.name, p.window_start
        FROM (SELECT id, name, window_start, window_end FROM {_tumble("people")}
            GROUP BY id, name, window_start, window_end) p
        JOIN (SELECT seller, window_start, window_end FROM {_tumble("auctions")}
            GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": """SELECT id, item_name, seller, category, auction, bidder, price, bid_datetime FROM (
            SELECT a.id, a.item_name, a.seller, a.category, b.auction, b.bidder, b.price,
                b.`datetime` AS bid_datetime,
                ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`datetime`) AS place
            FROM auctions a JOIN bids b ON a.id = b.auction
            WHERE b.`datetime` BETWEEN a.`datetime` AND a.expires)
        WHERE place <= 1""",
    "q11": """SELECT bidder, num, begun AS window_start FROM (
            SELECT bidder, count(*) AS num, min(`datetime`) AS begun
            FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
            GROUP BY bidder, window_start, window_end)""",
    "q12": f"""SELECT bidder, count(*) AS num, window_start
        FROM {_tumble("bids")} GROUP BY bidder, window_start, window_end""",
    "q15": f"""SELECT {_DAY} AS `day`, count(*) AS total_bids,
            count(*) FILTER (WHERE price < 10000) AS rank1_bids,
            count(DISTINCT bidder) AS total_bidders, count(DISTINCT auction) AS total_auctions
        FROM bids GROUP BY {_DAY}""",
    "q17": f"""SELECT auction, {_DAY} AS `day`, count(*) AS total_bids,
            count(*) FILTER (WHERE price < 10000) AS rank1_bids,
            count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
            count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
            min(price) AS min_price, max(price) AS max_price, sum(price) AS sum_price
        FROM bids GROUP BY auction, {_DAY}""",
    "q18": """SELECT auction, bidder, price, `datetime` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `datetime` DESC) AS age
            FROM bids)
        WHERE age <= 1""",
    "q19": """SELECT auction, bidder, price, `datetime` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, `datetime`) AS place
            FROM bids)
        WHERE place <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.`datetime` AS bid_datetime, a.item_name, a.seller,
            a.`datetime` AS auction_datetime
        FROM bids b JOIN auctions a ON b.auction = a.id
        WHERE a.category = 10""",
    "hop5": f"SELECT auction, num, window_start FROM ({_hop(1, 5)})",
    "hop60": f"SELECT auction, num, window_start FROM ({_hop(1, 60)})",
}

SETTINGS = {
    "parallelism.default": str(CORES),
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "state.backend.type": "hashmap",
    "taskmanager.numberOfTaskSlots": str(CORES),
    "rest.bind-address": "127.0.0.1",
    "jobmanager.bind-host": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1",
}


def run(task: Task) -> Batches:
    """Run the query; if rows are requested, apply its changelog and write the final rows."""
    configuration = Configuration()
    for name, value in SETTINGS.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration)
    tables = TableEnvironment.create(settings.build())
    for statement in TABLES.format(path=task.converted("flat", _convert).as_uri()).split(";"):
        tables.execute_sql(statement)
    query = tables.sql_query(QUERIES[task.query])
    if not task.rows:
        sink = TableDescriptor.for_connector("blackhole").build()
        return [(task.count, _seconds(query.execute_insert(sink))) for _ in range(ROUNDS)]
    with tempfile.TemporaryDirectory() as folder:
        to_files = TableDescriptor.for_connector("filesystem").option("path", Path(folder).as_uri())
        seconds = _seconds(query.execute_insert(to_files.format("debezium-json").build()))
        pq.write_table(_left(Path(folder)), task.rows)
    return [(task.count, seconds)]


def _seconds(job: Any) -> float:
    """Wait for the end of a job, and take its time from the cluster."""
    milliseconds: int = job.get_job_client().get_job_execution_result().result().get_net_runtime()
    return milliseconds / 1000


def _convert(files: list[Path], to: Path) -> None:
    """Every other event for each reader, in the order of event time."""
    schema = flat(pq.read_table(files[0])).schema
    writers = [pq.ParquetWriter(to / f"{lane}.parquet", schema, compression="zstd") for lane in range(CORES)]
    for file in files:
        table = flat(pq.read_table(file))
        for lane, writer in enumerate(writers):
            writer.write_table(table.take(pa.array(range(lane, table.num_rows, CORES))))
    for writer in writers:
        writer.close()


def _left(folder: Path) -> pa.Table:
    """The final rows of a changelog in the files of a folder."""
    counted: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            change = json.loads(line)
            is_delete = change["op"] == "d"
            counted[tuple(change["before" if is_delete else "after"].items())] += -1 if is_delete else 1
    assert all(times >= 0 for times in counted.values())
    table = pa.Table.from_pylist([dict(row) for row in counted.elements()])
    for at, name in enumerate(table.column_names):
        if name.endswith("datetime") or name == "window_start":
            table = table.set_column(at, name, table[name].cast(pa.timestamp("us")))
    return table


if __name__ == "__main__":
    sys.exit(answer(QUERIES, run))
