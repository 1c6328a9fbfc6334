"""Prints every event: its type, its id and, of an input, the value."""

import json

import pyarrow as pa  # dora would import it with the first message, and meanwhile lose others
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        line = {"type": dora_event["type"], "id": dora_event["id"]}
        if dora_event["type"] == "INPUT":
            value: pa.Array = dora_event["value"]
            line["value"] = value.to_pylist()
        print(json.dumps(line))
        return DoraStatus.CONTINUE
