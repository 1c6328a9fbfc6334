import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.seen = []

    def on_event(self, dora_event, send_output):
        self.seen.append(dora_event["id"])
        if min(self.seen.count("fast"), self.seen.count("slow")) < 2:
            return DoraStatus.CONTINUE
        print(json.dumps({"seen": sorted(set(self.seen))}))
        return DoraStatus.STOP
