"""Sends 0 … 29 with its first tick, as fast as it can, and is over some ticks later."""

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        if self.ticks == 0:
            for n in range(30):
                send_output("n", pa.array([n]))
        self.ticks += 1
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
