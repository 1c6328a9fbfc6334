import datetime as dt

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            when = dt.datetime(2024, 2, 29, 12, 30, 0, 250, tzinfo=dt.UTC)
            send_output("x", pa.array([1]), {"timestamp": when})
            send_output(
                "x",
                pa.array([1]),
                {"timestamp": when.astimezone(dt.timezone(dt.timedelta(hours=-5)))},
            )
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
