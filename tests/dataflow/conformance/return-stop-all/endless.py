import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "STOP":
            print(json.dumps({"type": "STOP"}))
        return DoraStatus.CONTINUE
