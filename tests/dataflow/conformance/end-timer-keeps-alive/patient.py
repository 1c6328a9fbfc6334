import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.closed = False
        self.after = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT_CLOSED":
            self.closed = True
            print(json.dumps({"closed": dora_event["id"]}))
        elif self.closed:
            self.after += 1
            if self.after == 3:
                print(json.dumps({"ticks after": 3}))
                return DoraStatus.STOP
        return DoraStatus.CONTINUE
