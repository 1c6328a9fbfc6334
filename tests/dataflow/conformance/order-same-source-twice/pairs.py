import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.seen = {"left": [], "right": []}
        self.open = 2

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.seen[dora_event["id"]].append(dora_event["value"][0].as_py())
        elif dora_event["type"] == "INPUT_CLOSED":
            self.open -= 1
            if not self.open:
                print(json.dumps(self.seen))
        return DoraStatus.CONTINUE
