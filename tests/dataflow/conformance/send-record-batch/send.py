import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for data in (
                pa.record_batch({"a": [1, 2], "b": ["x", None]}),
                pa.record_batch({"a": pa.array([], pa.int64())}),
            ):
                send_output("x", data)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
