import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for data in (
                pa.array([0], pa.timestamp("us")),
                pa.array([0], pa.timestamp("ms", "UTC")),
                pa.array([1], pa.date32()),
                pa.array([1000], pa.time64("us")),
                pa.array([90], pa.duration("s")),
            ):
                send_output("x", data)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
