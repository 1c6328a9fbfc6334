import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            send_output("image/left", pa.array([7]))
            send_output("image/right", pa.array([8]))
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
