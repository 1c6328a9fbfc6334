"""Counts words. It saves what it remembers by itself."""

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.counts = {}

    def snapshot(self):
        return sorted(self.counts.items())

    def restore(self, state):
        self.counts = dict(state)

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            for row in dora_event["value"].to_pylist():
                word = row["word"]
                self.counts[word] = self.counts.get(word, 0) + 1
                batch = {"word": [word], "n": [row["n"]], "count": [self.counts[word]]}
                send_output("counts", pa.RecordBatch.from_pydict(batch))
        return DoraStatus.CONTINUE
