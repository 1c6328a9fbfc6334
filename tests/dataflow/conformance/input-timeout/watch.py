import json
import time

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.last = time.monotonic()
            value: pa.Array = dora_event["value"]
            print(json.dumps({"got": value[0].as_py()}))
        elif dora_event["type"] == "INPUT_CLOSED":
            before = time.monotonic() - self.last < 1.5
            print(json.dumps({"closed": dora_event["id"], "before the sender ended": before}))
        return DoraStatus.CONTINUE
