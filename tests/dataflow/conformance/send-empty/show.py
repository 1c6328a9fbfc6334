import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            value = dora_event["value"]
            print(json.dumps({"type": str(value.type), "value": value.to_pylist()}, default=str))
        return DoraStatus.CONTINUE
