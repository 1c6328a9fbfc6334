import datetime as dt
import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            before = dt.datetime.fromisoformat(dora_event["value"][0].as_py())
            later = dora_event["metadata"]["timestamp"] - before
            print(json.dumps({"near": abs(later) < dt.timedelta(seconds=5)}))
        return DoraStatus.CONTINUE
