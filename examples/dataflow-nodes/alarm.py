"""An operator between two processes: says which levels are too high."""

from typing import Any

from dora import DoraStatus  # type: ignore[import-not-found]


class Operator:
    def on_event(self, dora_event: dict[str, Any], send_output: Any) -> Any:
        if dora_event["type"] == "INPUT" and dora_event["value"][0].as_py() > 8:
            send_output("alarm", dora_event["value"], dora_event["metadata"])
        return DoraStatus.CONTINUE
