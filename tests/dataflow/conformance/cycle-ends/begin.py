import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        print(json.dumps({"type": dora_event["type"], "id": dora_event["id"]}))
        send_output("ball", pa.array([0]))
        return DoraStatus.STOP
