import json
import os

from dora import DoraStatus

AT_IMPORT = os.environ.get("PLACE")


class Operator:
    def __init__(self):
        self.at_init = os.environ.get("PLACE")

    def on_event(self, dora_event, send_output):
        print(
            json.dumps({"import": AT_IMPORT, "__init__": self.at_init, "on_event": os.environ.get("PLACE")})
        )
        return DoraStatus.STOP
