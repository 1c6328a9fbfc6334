import json

from dora import DoraStatus

SEEN = []


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            SEEN.append(dora_event["value"][0].as_py())
            print(json.dumps({"seen": len(SEEN)}))
        return DoraStatus.CONTINUE
