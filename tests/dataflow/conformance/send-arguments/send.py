import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            one = pa.array([1])
            results = [
                send_output("x", one),
                send_output("x", one, None),
                send_output("x", one, {"way": "by place"}),
                send_output("x", one, metadata={"way": "by name"}),
                send_output("x", data=one),
                send_output(output="x", data=one, metadata={"way": "all by name"}),
            ]
            print(json.dumps({"results": results}))
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
