import json
import time

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.seen = []

    def on_event(self, dora_event, send_output):
        if dora_event["type"] != "INPUT":
            return DoraStatus.CONTINUE
        if not self.seen:
            time.sleep(0.3)  # until all of them wait
        self.seen.append(dora_event["id"] + str(dora_event["value"][0].as_py()))
        if len(self.seen) == 10:
            middle = [one[0] for one in self.seen[1:8]]
            print(json.dumps({"in turns": "".join(middle) in ("yzyzyzy", "zyzyzyz")}))
            for name in ("y", "z"):
                print(json.dumps({"seen": [one for one in self.seen if one[0] == name]}))
        return DoraStatus.CONTINUE
