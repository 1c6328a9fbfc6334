import itertools
import json
import threading

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.lock = threading.Lock()
        self.numbers = (n for n in itertools.count())
        self.file = open(__file__)

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            with self.lock:
                print(json.dumps({"got": dora_event["value"][0].as_py(), "next": next(self.numbers)}))
        return DoraStatus.CONTINUE
