"""Counts beats."""

from typing import Any

import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]


class Operator:
    def __init__(self) -> None:
        self.count = 0

    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] == "INPUT":
            self.count += len(dora_event["value"])
            send_output("count", pa.array([self.count]), dora_event["metadata"])
        return DoraStatus.CONTINUE
