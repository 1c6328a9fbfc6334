"""Counts: 0, 1, 2, 3, 4, one with each tick.

It is over only some ticks later: dora drops what is still under way when the sender ends.
"""

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.n = 0

    def on_event(self, dora_event, send_output):
        if self.n < 5:
            send_output("n", pa.array([self.n]), dora_event["metadata"])
        self.n += 1
        return DoraStatus.STOP if self.n == 15 else DoraStatus.CONTINUE
