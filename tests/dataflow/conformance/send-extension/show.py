import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            value = dora_event["value"]
            print(json.dumps({"type": str(value.type), "bytes": value[0].as_py().hex()}))
        return DoraStatus.CONTINUE
