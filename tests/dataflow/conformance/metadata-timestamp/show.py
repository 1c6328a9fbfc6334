import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            print(json.dumps({"time": dora_event["metadata"]["timestamp"].isoformat()}))
        return DoraStatus.CONTINUE
