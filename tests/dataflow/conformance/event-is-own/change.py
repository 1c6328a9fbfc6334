import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            marked = "mark" in dora_event["metadata"]
            print(json.dumps({"marked": marked, "keys": len(dora_event)}))
            dora_event["metadata"]["mark"] = True
            dora_event.clear()
        return DoraStatus.CONTINUE
