"""Prints what it gets, and which input has ended."""

from typing import Any

from dora import DoraStatus  # type: ignore[import-not-found]


class Operator:
    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] == "INPUT":
            print(f"{dora_event['id']}: {dora_event['value'][0]}")
        elif dora_event["type"] == "INPUT_CLOSED":
            print(f"{dora_event['id']} has ended")
        return DoraStatus.CONTINUE
