"""Compares each window of a gate with the one before."""

from typing import Any

import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]


class Operator:
    """Rows of a SQL step come as one struct array for each batch; record batches go on as rows."""

    def __init__(self) -> None:
        self.levels: dict[int, int] = {}

    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] == "INPUT":
            rises = []
            for row in sorted(dora_event["value"].to_pylist(), key=lambda row: row["since"]):
                before = self.levels.get(row["gate"], 0)
                rises.append({"gate": row["gate"], "since": row["since"], "rise": row["level"] - before})
                self.levels[row["gate"]] = row["level"]
            send_output("rises", pa.RecordBatch.from_pylist(rises))
        return DoraStatus.CONTINUE
