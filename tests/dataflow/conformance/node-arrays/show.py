import json

from dora import Node

for event in Node():
    if event["type"] == "INPUT":
        metadata = {name: value for name, value in event["metadata"].items() if name != "timestamp"}
        shown = {"type": str(event["value"].type), "value": event["value"].to_pylist()}
        print(json.dumps({**shown, **dict(sorted(metadata.items()))}))
