import json

from arithmetic import double
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            print(json.dumps({"doubled": double(dora_event["value"][0].as_py())}))
        return DoraStatus.CONTINUE
