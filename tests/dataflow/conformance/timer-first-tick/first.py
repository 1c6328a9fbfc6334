import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        print(json.dumps({"type": dora_event["type"], "id": dora_event["id"]}))
        return DoraStatus.STOP
