import json

from dora import DoraStatus
from words import WORD


class Operator:
    def on_event(self, dora_event, send_output):
        from late import LATE

        print(json.dumps({"operator": "right", "word": WORD, "late": LATE}))
        return DoraStatus.STOP
