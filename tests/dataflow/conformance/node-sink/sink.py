import json

import pyarrow as pa
from dora import Node

node = Node()
for event in node:
    line = {"type": event["type"], "id": event["id"]}
    if event["type"] == "INPUT":
        value: pa.Array = event["value"]
        line["value"] = value.to_pylist()
        line["k"] = event["metadata"].get("k")
    print(json.dumps(line))
print(json.dumps({"over": True}))
