import json

from dora import Node

received = {}
for event in Node():
    if event["type"] == "INPUT":
        key = f"{event['id']} {event['metadata']['label']}"
        received.setdefault(key, []).append(event["value"][0].as_py())
print(json.dumps(dict(sorted(received.items()))))
