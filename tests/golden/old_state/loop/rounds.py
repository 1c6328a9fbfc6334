"""Sends every row to itself, five times in all. With a file `slow` beside it, rows wait for the next epoch."""

import time
from pathlib import Path

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.rounds = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        if Path("slow").exists():
            time.sleep(0.2)
        self.rounds += 1
        for row in dora_event["value"].to_pylist():
            turn = row.get("turn", 0) + 1
            batch = {"n": [row["n"]], "turn": [turn]}
            if turn < 5:
                send_output("again", pa.RecordBatch.from_pydict(batch))
            else:
                send_output("done", pa.RecordBatch.from_pydict(batch))
        return DoraStatus.STOP if self.rounds == 60 else DoraStatus.CONTINUE
