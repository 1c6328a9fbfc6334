import json
import time

from dora import Node

node = Node()
for event in node:
    if event["type"] != "INPUT":
        print(json.dumps({"type": event["type"], "id": event["id"]}))
time.sleep(1)  # closes a device, writes a file
print(json.dumps({"over": True}))
