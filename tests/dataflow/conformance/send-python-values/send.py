import numpy as np
import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for data in (
                [1, 2, 3],
                ["a", "b"],
                np.array([1.5, 2.5]),
                np.array([[1, 2], [3, 4]]),
                7,
                0.5,
                True,
                "text",
                bytearray(b"ab"),
                memoryview(b"ab"),
                pa.scalar(7),
                np.float32(0.5),
                pa.chunked_array([[1], [2]]),
                pa.table({"a": [1, 2]}),
            ):
                send_output("x", data)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
