import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.kept = []

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.kept.append(dora_event["value"])
        else:
            print(json.dumps({"kept": [value.to_pylist() for value in self.kept]}))
        return DoraStatus.CONTINUE
