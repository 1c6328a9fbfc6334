"""Sends all its rows at the first tick, and ends."""

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        for n in range(12):
            send_output("words", pa.RecordBatch.from_pydict({"n": [n]}))
        return DoraStatus.STOP
