import datetime as dt
import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            metadata = dora_event["metadata"]
            apart = metadata["timestamp"] - dt.datetime.fromisoformat(dora_event["value"][0].as_py())
            same = abs(apart) <= dt.timedelta(microseconds=3)  # dora rounds at each step
            print(json.dumps({"same time": same, "n": metadata["n"]}))
        return DoraStatus.CONTINUE
