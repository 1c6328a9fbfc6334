"""Counts the ticks of a timer, and stops at twenty."""

from typing import Any

import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]

LAST = 20


class Operator:
    """Its attributes are its memory: they are saved with each epoch, and are there again after a restart."""

    def __init__(self) -> None:
        self.count = 0

    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        self.count += 1
        send_output("count", pa.array([self.count]), dora_event["metadata"])
        if self.count < LAST:
            return DoraStatus.CONTINUE
        print(f"counted to {self.count}")
        return DoraStatus.STOP
