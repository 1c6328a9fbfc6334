import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        line = {
            "type": dora_event["type"],
            "id": dora_event["id"],
            "class": type(dora_event["value"]).__name__,
            "length": len(dora_event["value"]),
            "metadata": sorted(dora_event["metadata"]),
        }
        print(json.dumps(line))
        return DoraStatus.STOP
