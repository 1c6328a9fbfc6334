"""Writes small dataflows for tests."""

from __future__ import annotations

import textwrap
from pathlib import Path


def write_dataflow(directory: Path, **files: str) -> Path:
    """Files by their names, `dataflow` is the YAML and the others are Python; returns the YAML's path."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        ending = "yml" if name == "dataflow" else "py"
        (directory / f"{name}.{ending}").write_text(textwrap.dedent(text).lstrip())
    return directory / "dataflow.yml"


LOG = """
    import json

    from dora import DoraStatus

    class Operator:
        def on_event(self, dora_event, send_output):
            value = dora_event["value"].to_pylist() if dora_event["type"] == "INPUT" else dora_event["type"]
            print(json.dumps([dora_event["id"], value], default=str))
            return DoraStatus.CONTINUE
"""

COUNTER = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.count = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                self.count += 1
                send_output("count", pa.array([self.count]))
                if self.count == 20:
                    return DoraStatus.STOP
            return DoraStatus.CONTINUE
"""

COUNT_AND_LOG = """
    nodes:
      - id: counter
        operator:
          python: counter.py
          inputs: {tick: dora/timer/millis/100}
          outputs: [count]
      - id: log
        operator:
          python: log.py
          inputs: {count: counter/count}
"""
