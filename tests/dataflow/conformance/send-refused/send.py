import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def attempt(self, send_output, what, data):
        try:
            send_output("x", data)
        except Exception as error:
            print(json.dumps({"refused": what, "an error": str(error) != ""}))
        else:
            print(json.dumps({"sent": what}))

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            self.attempt(send_output, "an object", object())
            self.attempt(send_output, "a set", {1, 2})
            self.attempt(send_output, "a function", print)
            self.attempt(send_output, "a generator", (n for n in [1]))
            send_output("x", pa.array([1]))
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
