"""`python -m bench [NAME [ARGUMENT …]]`: run one benchmark, or all about speed, and write their pages."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

SPEED = {
    "nexmark": "bench.nexmark.__main__",
    "batch": "bench.nexmark.batch",
    "peers": "bench.nexmark.peers",
    "growth": "bench.nexmark.growth",
    "latency": "bench.latency.__main__",
    "state": "bench.state_growth",
    "dataflow": "bench.dataflow.__main__",
}
OTHERS = {
    "compare": "bench.compare",
    "connect": "bench.connect",
    "connectors": "bench.connectors.__main__",
    "scaling": "bench.scaling",
}
"""These are run only by their name."""


def main() -> int:
    """Run what the command line names, with the arguments behind it, or everything about speed."""
    benchmarks = SPEED | OTHERS
    name, *arguments = sys.argv[1:] or [""]
    if name and name not in benchmarks:
        sys.stderr.write(f"no benchmark {name}; there are {', '.join(benchmarks)}\n")
        return 2
    chosen = [name] if name else list(SPEED)
    worst = 0
    for benchmark in chosen:
        if find_spec(benchmarks[benchmark].rpartition(".")[0]) and find_spec(benchmarks[benchmark]):
            sys.argv = [f"python -m bench {benchmark}", *arguments]
            worst = max(worst, import_module(benchmarks[benchmark]).main() or 0)
    return worst


if __name__ == "__main__":
    sys.exit(main())
