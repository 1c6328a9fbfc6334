import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.seen = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.seen += 1
            count = dora_event["value"][0].as_py()
            row = {"count": count, "double": 2 * count, "seen": self.seen}
            send_output("rows", pa.RecordBatch.from_pylist([row]))
        return DoraStatus.CONTINUE
