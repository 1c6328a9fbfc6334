import json

from dora import Node

for event in Node():
    if event["type"] == "INPUT":
        metadata = {name: value for name, value in event["metadata"].items() if name != "timestamp"}
        print(json.dumps({"token": event["value"][0].as_py(), **dict(sorted(metadata.items()))}))
