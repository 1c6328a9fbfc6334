import json
import os

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        print(json.dumps({name: os.environ.get(name) for name in ("INTEGER", "FRACTION", "YES", "TEXT")}))
        return DoraStatus.STOP
