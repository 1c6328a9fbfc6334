import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["id"] == "start":
            send_output("ball", pa.array([0]))
            return DoraStatus.CONTINUE
        n = dora_event["value"][0].as_py()
        print(json.dumps({"got": n}))
        if n == 9:
            return DoraStatus.STOP
        send_output("ball", pa.array([n + 1]))
        return DoraStatus.CONTINUE
