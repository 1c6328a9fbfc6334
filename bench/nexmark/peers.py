"""`python -m bench peers`: Headrace beside PyFlink, Bytewax and Pathway, as far as they are installed.

Each peer has an environment of its own below `build/peers`. A round of a peer reads as many events as an
epoch of Headrace.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.nexmark.data import FULL, Size
from bench.nexmark.page import write_page
from bench.nexmark.queries import QUERIES
from bench.nexmark.report import peers_table
from bench.nexmark.results import DATA, ROOT, about, save
from bench.nexmark.runs import PEERS, Run, differences, peer_queries, run

ROUND = Size(FULL.per_batch, FULL.per_file, FULL.per_batch)


def main(argv: list[str] | None = None) -> int:
    """Compare the rows, measure, print the table and save it."""
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="QUERY")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the events")
    parser.add_argument("--small", action="store_true", help="measure over the few events of the comparison")
    parser.add_argument("--check-only", action="store_true", help="compare the rows and measure nothing")
    options = parser.parse_args(argv)
    asked = {
        query: [peer for peer in PEERS if query in peer_queries(peer)] for query in options.queries or QUERIES
    }
    asked = {query: peers for query, peers in asked.items() if peers}
    if not asked:
        print("no peers are installed", file=sys.stderr)
        return 0
    wrong: list[str] = []
    for query, peers in asked.items():
        events = QUERIES[query].data.make(options.data, QUERIES[query].small)
        wrong += differences(query, events, ["datafusion", *peers])
        print(f"{query}: compared {', '.join(peers)}", file=sys.stderr)
    for line in wrong:
        print(line, file=sys.stderr)
    if options.check_only:
        return 1 if wrong else 0
    before = about()
    before["versions"] |= _versions({peer for peers in asked.values() for peer in peers})
    runs: list[Run] = []
    for _ in range(options.repeat):
        for query, peers in asked.items():
            data = QUERIES[query].data
            for engine in ("headrace", *peers):
                size = QUERIES[query].small if options.small else ROUND if engine in PEERS else None
                runs.append(run(engine, query, data.make(options.data, size)))
                print(runs[-1], file=sys.stderr)
    print(peers_table(runs))
    if not (options.queries or options.small):
        save("peers", runs, {**before, "repeat": options.repeat, "differences": wrong})
        write_page()
    return 1 if wrong or any(run.failure for run in runs) else 0


def _versions(peers: set[str]) -> dict[str, str]:
    """The versions that are pinned for the environments of the peers."""
    pinned = [line for peer in peers for line in (ROOT / f"bench/peers/{peer}.txt").read_text().splitlines()]
    packages = {"bytewax", "pathway", "apache-flink"}
    return {name: number for name, _, number in (line.partition("==") for line in pinned) if name in packages}


if __name__ == "__main__":
    sys.exit(main())
