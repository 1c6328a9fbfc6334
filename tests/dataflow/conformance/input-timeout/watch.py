import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        if dora_event["id"] == "tick":
            self.ticks += 1
        elif dora_event["type"] == "INPUT":
            value: pa.Array = dora_event["value"]
            print(json.dumps({"got": value[0].as_py()}))
        elif dora_event["type"] == "INPUT_CLOSED":
            # The sender ends after 100 ticks, the time is over after 10.
            print(json.dumps({"closed": dora_event["id"], "in time": 5 < self.ticks < 60}))
            return DoraStatus.STOP
        return DoraStatus.CONTINUE
