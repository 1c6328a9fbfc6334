import enum
import json


class Answer(enum.IntEnum):
    GO_ON = 0
    ENOUGH = 1


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        print(json.dumps({"tick": self.ticks}))
        return Answer.ENOUGH if self.ticks == 2 else Answer.GO_ON
