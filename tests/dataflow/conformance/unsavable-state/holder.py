import json
import threading

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.lock = threading.Lock()
        self.double = lambda n: 2 * n
        self.seen = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            with self.lock:
                self.seen += 1
                print(json.dumps({"double": self.double(dora_event["value"][0].as_py()), "seen": self.seen}))
        return DoraStatus.CONTINUE
