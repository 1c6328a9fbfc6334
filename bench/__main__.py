"""`python -m bench [NAME …]`: run the benchmarks and write their tables into docs/."""

from __future__ import annotations

import sys

from bench import state_growth

BENCHMARKS = {"state": state_growth.main}


def main() -> int:
    """Run the benchmarks named on the command line, or all of them."""
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}\n")
        return 2
    for name in names:
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
