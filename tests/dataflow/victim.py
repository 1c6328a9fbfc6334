"""A dataflow that can be killed: `python -m tests.dataflow.victim FILE STATE` runs it until it ends."""

from __future__ import annotations

import sys

from headrace.testing.dataflows import run_dataflow

if __name__ == "__main__":
    outcome = run_dataflow(sys.argv[1], state_dir=sys.argv[2], real_time=True)
    sys.stdout.write(f"{outcome.reason} {outcome.error}\n")
    sys.exit(outcome.exit_code)
