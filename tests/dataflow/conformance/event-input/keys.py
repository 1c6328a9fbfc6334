import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        timestamp = dora_event["metadata"]["timestamp"]
        line = {
            "event": type(dora_event).__name__,
            "keys": sorted(dora_event),
            "kind": dora_event["kind"],
            "id": dora_event["id"],
            "value": type(dora_event["value"]).__name__,
            "metadata": type(dora_event["metadata"]).__name__,
            "timestamp": type(timestamp).__name__,
            "offset": timestamp.utcoffset().total_seconds(),
        }
        print(json.dumps(line))
        return DoraStatus.STOP
