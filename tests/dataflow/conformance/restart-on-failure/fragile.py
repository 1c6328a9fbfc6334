import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.seen = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            n = dora_event["value"][0].as_py()
            if n == 2:
                raise ValueError("boom at two")
            self.seen += 1
            print(json.dumps({"got": n, "seen": self.seen}))
        return DoraStatus.CONTINUE
