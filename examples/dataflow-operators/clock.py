"""Sends a beat for each of the first ten ticks."""

from typing import Any

import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]


class Operator:
    def __init__(self) -> None:
        self.left = 10

    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] == "INPUT":
            self.left -= 1
            send_output("beat", pa.array([True]), dora_event["metadata"])
        return DoraStatus.CONTINUE if self.left else DoraStatus.STOP
