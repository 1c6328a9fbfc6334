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
            zone = dt.timezone(dt.timedelta(hours=2))
            for metadata in (
                {"yes": True, "no": False},
                {"one": 1, "most": 2**63 - 1, "least": -(2**63)},
                {"half": 0.5, "whole": 1.0},
                {"text": "Grüße", "empty": ""},
                {"integers": [1, 2, 3], "floats": [0.5, 1.5], "texts": ["a", "b"]},
                {"tuple": (1, 2), "nothing": []},
                {"when": when, "elsewhere": when.astimezone(zone)},
                {},
            ):
                send_output("x", pa.array([1]), metadata)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
