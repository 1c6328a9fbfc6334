"""A dataflow that can be killed: `python -m tests.dataflow.victim FILE STATE [RECORDING]` runs it."""

from __future__ import annotations

import os
import sys
from typing import Any

from headrace.testing.dataflows import run_dataflow

if __name__ == "__main__":
    recording = sys.argv[3] if len(sys.argv) > 3 else None
    execution: Any = os.environ.get("EXECUTION", "epochs")
    outcome = run_dataflow(
        sys.argv[1], state_dir=sys.argv[2], real_time=True, record=recording, execution=execution
    )
    sys.stdout.write(f"{outcome.reason} {outcome.error}\n")
    sys.exit(outcome.exit_code)
