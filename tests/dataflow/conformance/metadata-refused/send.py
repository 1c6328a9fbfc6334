import json

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        for what, metadata in (
            ("beyond 64 bits", {"n": 2**70}),
            ("a key that is no text", {1: "one"}),
            ("no dict", ["a", "b"]),
            ("a mixed list", {"mixed": [1, "a"]}),
        ):
            try:
                send_output("x", pa.array([1]), metadata)
            except Exception as error:
                print(json.dumps({"refused": what, "an error": str(error) != ""}))
            else:
                print(json.dumps({"sent": what}))
        return DoraStatus.STOP
