import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            return DoraStatus.CONTINUE
        print(json.dumps({"type": dora_event["type"]}))
        return DoraStatus.STOP
