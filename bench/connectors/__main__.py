"""`python -m bench.connectors [NAME…]`: rows per second of each connector, beside its client library alone.

Every module of this package has `measure()`, which starts its own server and measures both in the same run.
What is measured is the connector without Spark: how fast one task reads or writes; and each format beside
pyarrow or its own library. The results become a page of the documentation when all are measured.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "connector-speed.md"
TEXT = """\
# Benchmarks of connectors and formats

Written by `python -m bench.connectors` on {date}: Python {python}, {cores} cores, load average {load:.1f} at
the start. One task without Spark, reading or writing with the connector, compared with the bare client
library in the same run. Formats are decoded and encoded on one core, compared with pyarrow or the library of
the format. Only the ratios carry over to other machines.

{table}
"""


def names() -> list[str]:
    """The connectors that have a benchmark."""
    folder = Path(__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    """Measure, print a table, and write the page if nothing is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.connectors", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    chosen = parser.parse_args().names or names()
    busy = os.getloadavg()[0]
    rates: dict[str, dict[str, float]] = {}
    for name in chosen:
        try:
            rates[name] = importlib.import_module(f"bench.connectors.{name}").measure()
        except Exception as error:  # noqa: BLE001 - one that cannot be measured does not keep the others from it
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    table = _table(rates)
    print(table)
    if rates.keys() == set(names()):
        PAGE.write_text(
            TEXT.format(
                date=f"{datetime.now(UTC):%Y-%m-%d}",
                python=platform.python_version(),
                cores=os.cpu_count(),
                load=busy,
                table=table,
            ),
            encoding="utf-8",
        )
    return 0 if rates.keys() == set(chosen) else 1


def _table(rates_by_connector: dict[str, dict[str, float]]) -> str:
    lines = ["| connector | what | rows per second |", "|---|---|---|"]
    lines += [
        f"| {name} | {what} | {rate:,.0f} |"
        for name, rates in rates_by_connector.items()
        for what, rate in rates.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
