"""The task of a peer, and how it reports its result: the same for all peers, needs only pyarrow."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

CORES = 2
KINDS = ("person", "auction", "bid")

Batches = list[tuple[int, float]]
"""(events, seconds from the first read to the last result) of each round."""


@dataclass(frozen=True)
class Task:
    """A query over a folder of Parquet files, and optionally where its rows are written."""

    query: str
    folder: Path
    count: int
    rows: Path | None

    def converted(self, name: str, convert: Callable[[list[Path], Path], None]) -> Path:
        """A folder with the events in another format, created from the files if it does not exist."""
        directory = self.folder.parent / f"{self.folder.name}-{name}"
        if not directory.exists():
            unfinished = directory.with_name(f"{directory.name}.unfinished-{os.getpid()}")
            unfinished.mkdir(parents=True)
            convert(sorted(self.folder.glob("*.parquet")), unfinished)
            try:
                unfinished.rename(directory)
            except OSError:  # another process was faster
                shutil.rmtree(unfinished)
        return directory


def flat(table: pa.Table) -> pa.Table:
    """Events without structs: columns such as `bid_price`, and the one `datetime` that all kinds have."""
    columns = {}
    for kind in KINDS:
        events = table[kind].combine_chunks()
        for at, field in enumerate(events.type):
            if field.name != "datetime":
                columns[f"{kind}_{field.name}"] = events.flatten()[at]
    return pa.table({**columns, "datetime": table["datetime"]})


def answer(queries: Iterable[str], run: Callable[[Task], Batches]) -> int:
    """Run the query of the command line, and print its measurements as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("query", choices=sorted(queries))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True, help="how many events the folder has")
    parser.add_argument("--rows", type=Path, help="write the rows of the answer to this Parquet file")
    options = parser.parse_args()
    begun = time.perf_counter()
    batches = run(Task(options.query, options.folder.absolute(), options.count, options.rows))
    print(json.dumps({"batches": batches, "seconds": time.perf_counter() - begun}), flush=True)
    return 0
