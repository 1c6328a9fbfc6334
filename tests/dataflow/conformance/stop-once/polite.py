import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "STOP":
            send_output("n", pa.array([1]))
            print(json.dumps({"type": "STOP", "sent": True}))
        return DoraStatus.CONTINUE
