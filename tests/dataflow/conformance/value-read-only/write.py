import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        numbers = dora_event["value"].to_numpy()
        print(json.dumps({"writeable": bool(numbers.flags.writeable)}))
        return DoraStatus.STOP
