import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            value = dora_event["value"]
            print(json.dumps({"offset": value.offset, "value": value.to_pylist()}))
        return DoraStatus.CONTINUE
