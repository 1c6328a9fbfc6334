"""Sends bursts of numbered arrays with every tick for a time, and is over some seconds later.

`BYTES` is the size of an array, `BURST` how many are sent with a tick and `SECONDS` for how long. The numbers
begin anew after 999. Small arrays are made beforehand, because making one takes longer than sending it; large
ones are made for each message, as a camera's would be. Every tenth message has the times of its tick and of
its sending in its metadata. The wait at the end is for dora, which drops what is still under way when the
sender ends.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from dora import DoraStatus  # type: ignore[import-not-found]

LENGTH = int(os.environ["BYTES"]) // 8
BURST = int(os.environ["BURST"])
SECONDS = float(os.environ["SECONDS"])
SMALL = [pa.array(np.full(1, n)) for n in range(1000)]


class Operator:
    def __init__(self) -> None:
        self.sent = 0
        self.begun: float | None = None

    def on_event(self, dora_event: dict[str, Any], send_output: Callable[..., None]) -> Any:
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        self.begun = self.begun or time.time()
        since = time.time() - self.begun
        if since < SECONDS:
            self.burst(dora_event["metadata"]["timestamp"].timestamp(), send_output)
        if since < SECONDS + 4:
            return DoraStatus.CONTINUE
        print(json.dumps({"sent": self.sent}))
        return DoraStatus.STOP

    def burst(self, tick: float, send_output: Callable[..., None]) -> None:
        for n in range(self.sent, self.sent + BURST):
            array = SMALL[n % 1000] if LENGTH == 1 else pa.array(np.full(LENGTH, n % 1000))
            if n % 10:
                send_output("n", array)
            else:
                send_output("n", array, {"tick": tick, "sent": time.time()})
        self.sent += BURST
