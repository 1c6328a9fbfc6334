import decimal

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for data in (
                pa.array([1, 0, 7], pa.int8()),
                pa.array([1, 0, 7], pa.int16()),
                pa.array([1, 0, 7], pa.int32()),
                pa.array([1, 0, 7], pa.int64()),
                pa.array([1, 0, 7], pa.uint8()),
                pa.array([1, 0, 7], pa.uint16()),
                pa.array([1, 0, 7], pa.uint32()),
                pa.array([1, 0, 7], pa.uint64()),
                pa.array([0.5, -1.5], pa.float32()),
                pa.array([0.5, -1.5], pa.float64()),
                pa.array([0.5, -1.5], pa.float16()),
                pa.array([True, False, None]),
                pa.array([1, None, 3]),
                pa.nulls(3),
                pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)),
            ):
                send_output("x", data)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
