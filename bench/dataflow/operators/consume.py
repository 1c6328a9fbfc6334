"""Counts what arrives, looks whether it is in order, and measures how long it took.

Times are counted in classes, each a hundredth longer than the one before, so that the state stays small. A
message whose number is up to 500 more than the last one's comes after a gap; any other is out of order.
"""

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]

STEP = math.log(1.01)


def add(classes: dict[int, int], seconds: float) -> None:
    """Count a time, at a resolution of a microsecond."""
    at = int(math.log(max(seconds, 1e-6) / 1e-6) / STEP)
    classes[at] = classes.get(at, 0) + 1


def quantile(classes: dict[int, int], share: float) -> float | None:
    """The time in milliseconds that this share of the messages did not exceed."""
    left = share * sum(classes.values())
    for at in sorted(classes):
        left -= classes[at]
        if left <= 0:
            return 1e-3 * math.exp((at + 1) * STEP)
    return None


class Operator:
    def __init__(self) -> None:
        self.got = 0
        self.next = 0
        self.late = 0
        self.first = 0.0
        self.last = 0.0
        self.from_send: dict[int, int] = {}
        self.from_tick: dict[int, int] = {}

    def on_event(self, dora_event: dict[str, Any], send_output: Callable[..., None]) -> Any:
        if dora_event["type"] == "INPUT":
            self.take(dora_event)
        elif self.got:
            self.report()
        return DoraStatus.CONTINUE

    def take(self, dora_event: dict[str, Any]) -> None:
        value: pa.Array = dora_event["value"]
        n = value.tolist()[0] if len(value) == 1 else value[0].as_py()
        if (n - self.next) % 1000 < 500:
            self.next = n + 1
        else:
            self.late += 1
        self.got += 1
        metadata = dora_event["metadata"]
        if "sent" in metadata:
            now = self.last = time.time()
            self.first = self.first or now
            add(self.from_send, now - metadata["sent"])
            # The ticks before it waited for the engine to start.
            if metadata["tick"] > self.first:
                add(self.from_tick, now - metadata["tick"])

    def report(self) -> None:
        line = {
            "got": self.got,
            "late": self.late,
            "seconds": self.last - self.first,
            "from_send": [quantile(self.from_send, share) for share in (0.5, 0.95, 0.99)],
            "from_tick": [quantile(self.from_tick, share) for share in (0.5, 0.95, 0.99)],
        }
        print(json.dumps(line), flush=True)
        self.got = 0
