import numpy as np
import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for metadata in (
                {"none": None},
                {"dict": {"a": 1}},
                {"bools": [True, False]},
                {"numpy": np.int64(7)},
                {"bytes": b"ab"},
            ):
                send_output("x", pa.array([1]), metadata)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
