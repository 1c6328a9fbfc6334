import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        value: pa.Array = dora_event["value"]
        entry = json.loads(value[0].as_py())
        if not entry["message"].startswith("note"):
            return DoraStatus.CONTINUE
        print(json.dumps({key: entry[key] for key in ("level", "message", "node_id")}))
        return DoraStatus.STOP if entry["message"] == "note 3" else DoraStatus.CONTINUE
