import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] != "INPUT":
            line = {"keys": sorted(dora_event), **{key: dora_event[key] for key in ("kind", "type", "id")}}
            print(json.dumps(line))
        return DoraStatus.CONTINUE
