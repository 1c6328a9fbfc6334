import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        print(json.dumps({"event": dora_event["type"]}))
        return DoraStatus.STOP

    def __del__(self):
        print(json.dumps({"event": "dropped"}))
