"""Adds up what comes."""

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.sum = 0.0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            n = dora_event["value"][0].as_py()
            self.sum += n + dora_event["metadata"]["half"]
            send_output("sums", pa.RecordBatch.from_pydict({"n": [n], "sum": [self.sum]}))
        return DoraStatus.CONTINUE
