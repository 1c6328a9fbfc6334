import json

from dora import Node

node = Node()
print(json.dumps({"made": True}))
