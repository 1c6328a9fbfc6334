import datetime as dt
import json

from dora import DoraStatus

PERIOD = dt.timedelta(milliseconds=20)
SLACK = dt.timedelta(milliseconds=10)


class Operator:
    def __init__(self):
        self.times = []

    def on_event(self, dora_event, send_output):
        self.times.append(dora_event["metadata"]["timestamp"])
        if len(self.times) < 20:
            return DoraStatus.CONTINUE
        early = [t for n, t in enumerate(self.times) if t - self.times[0] < n * PERIOD - SLACK]
        print(json.dumps({"early": len(early)}))
        return DoraStatus.STOP
