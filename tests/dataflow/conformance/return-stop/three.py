import json

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        n = dora_event["value"][0].as_py()
        print(json.dumps({"got": n}))
        send_output("n", dora_event["value"])
        return DoraStatus.STOP if n == 2 else DoraStatus.CONTINUE
