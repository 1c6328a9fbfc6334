import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks < 10:
            return DoraStatus.CONTINUE
        print(json.dumps({"ticks": self.ticks}))
        return DoraStatus.STOP
