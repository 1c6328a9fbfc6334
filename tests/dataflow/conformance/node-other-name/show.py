import json

from dora import Node

node = Node("another-name")
event = node.next()
print(json.dumps({"type": event["type"], "id": event["id"]}))
