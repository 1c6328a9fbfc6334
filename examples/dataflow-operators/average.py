"""Sends the mean of all counts so far."""

from typing import Any

import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]


class Operator:
    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] == "INPUT":
            self.counts += dora_event["value"].to_pylist()
            mean = sum(self.counts) / len(self.counts)
            send_output("mean", pa.array([mean]), dora_event["metadata"])
        return DoraStatus.CONTINUE
