import os

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.count = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.count += 1
            send_output("count", pa.array([self.count]), dora_event["metadata"])
            if self.count == int(os.environ["COUNT_TO"]):
                return DoraStatus.STOP
        return DoraStatus.CONTINUE
