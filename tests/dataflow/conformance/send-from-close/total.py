import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.total = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.total += dora_event["value"][0].as_py()
        elif dora_event["type"] == "INPUT_CLOSED":
            send_output("sum", pa.array([self.total]))
        return DoraStatus.CONTINUE
