import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            metadata = {"n": 0, "list": [0]}
            for n in range(3):
                metadata["n"] = n
                metadata["list"][0] = n
                send_output("x", pa.array([n]), metadata)
            metadata.clear()
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
