import json

from dora import Node

node = Node()
for event in node:
    if event["type"] != "INPUT":
        print(json.dumps({"type": event["type"], "id": event["id"]}))
print(json.dumps({"over": True}))
