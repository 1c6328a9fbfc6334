import json
import time

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        time.sleep(0.05)
        n = dora_event["value"][0].as_py()
        print(json.dumps({"got": n}))
        return DoraStatus.STOP if n == 2 else DoraStatus.CONTINUE
