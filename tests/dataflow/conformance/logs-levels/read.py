import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        entry = json.loads(dora_event["value"][0].as_py())
        if not entry["message"].startswith("note"):
            return DoraStatus.CONTINUE
        print(json.dumps({key: entry[key] for key in ("level", "message")}))
        return DoraStatus.STOP if entry["message"] == "note 4" else DoraStatus.CONTINUE
