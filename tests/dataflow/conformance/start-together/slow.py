import json
import time

from dora import DoraStatus


class Operator:
    def __init__(self):
        time.sleep(0.4)
        print(json.dumps({"ready": True}))

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            print(json.dumps({"got": dora_event["value"][0].as_py()}))
        return DoraStatus.CONTINUE
