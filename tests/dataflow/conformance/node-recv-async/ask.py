import json

import pyarrow as pa
from dora import Node

node = Node()
sent, answers = 0, []
for event in node:
    if event["type"] != "INPUT":
        break
    if event["id"] == "tick" and sent < 5:
        node.send_output("number", pa.array([sent]))
        sent += 1
    elif event["id"] == "answer":
        answers += event["value"].to_pylist()
        if len(answers) == 5:
            break
print(json.dumps({"answers": answers}))
