import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            metadata = dora_event["metadata"]
            same = metadata["timestamp"].isoformat() == dora_event["value"][0].as_py()
            print(json.dumps({"same time": same, "n": metadata["n"]}))
        return DoraStatus.CONTINUE
