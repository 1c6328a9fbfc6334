import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        print(json.dumps({"tick": self.ticks}))
        return DoraStatus.STOP_ALL if self.ticks == 3 else DoraStatus.CONTINUE
