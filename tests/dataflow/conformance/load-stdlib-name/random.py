import json
import tempfile

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            # The standard library goes on using its own module of this name.
            name = next(tempfile._get_candidate_names())
            print(json.dumps({"own": dora_event["value"][0].as_py(), "standard": len(name) == 8}))
        return DoraStatus.CONTINUE
