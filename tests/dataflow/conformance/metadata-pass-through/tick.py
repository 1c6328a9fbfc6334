import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.n = 0

    def on_event(self, dora_event, send_output):
        metadata = dora_event["metadata"]
        metadata["n"] = self.n
        if self.n < 3:
            send_output("t", pa.array([metadata["timestamp"].isoformat()]), metadata)
        self.n += 1
        return DoraStatus.STOP if self.n == 15 else DoraStatus.CONTINUE
