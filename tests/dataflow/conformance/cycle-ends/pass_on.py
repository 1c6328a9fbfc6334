import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        print(json.dumps({"type": dora_event["type"], "id": dora_event["id"]}))
        if dora_event["type"] == "INPUT":
            passes = dora_event["value"][0].as_py()
            if passes < 4:
                send_output("ball", pa.array([passes + 1]))
        return DoraStatus.CONTINUE
