import json
import time

from dora import DoraStatus


class Operator:
    def __init__(self):
        self.seen = []

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.seen.append(dora_event["value"][0].as_py())
            time.sleep(0.005)
        elif dora_event["type"] == "INPUT_CLOSED":
            print(
                json.dumps(
                    {
                        "lost": len(self.seen) < 30,
                        "in order": self.seen == sorted(self.seen),
                        "last": self.seen[-3:],
                    }
                )
            )
        return DoraStatus.CONTINUE
