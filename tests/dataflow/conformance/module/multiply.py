import os

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.factor = int(os.environ["PARAM_FACTOR"])

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            send_output("n", pa.array([self.factor * dora_event["value"][0].as_py()]))
        return DoraStatus.CONTINUE
