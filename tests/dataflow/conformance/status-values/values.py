import json

import dora


class Operator:
    def on_event(self, dora_event, send_output):
        print(json.dumps({status.name: status.value for status in dora.DoraStatus}))
        return dora.DoraStatus.STOP
