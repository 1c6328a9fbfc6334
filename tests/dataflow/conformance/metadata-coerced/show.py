import datetime as dt
import json

from dora import DoraStatus


def plain(value):
    if isinstance(value, dt.datetime):
        return {"datetime": value.isoformat()}
    return value


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            metadata = dict(dora_event["metadata"])
            del metadata["timestamp"]
            print(json.dumps({key: plain(metadata[key]) for key in sorted(metadata)}))
        return DoraStatus.CONTINUE
