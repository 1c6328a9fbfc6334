import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT_CLOSED":
            print(json.dumps({"closed": dora_event["id"]}))
            return DoraStatus.CONTINUE
        n = dora_event["value"][0].as_py()
        print(json.dumps({"got": n}))
        send_output("ball", pa.array([n + 1]))
        return DoraStatus.CONTINUE
