import datetime as dt

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            before = dt.datetime.now(dt.UTC)
            send_output("x", pa.array([before.isoformat()]))
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
