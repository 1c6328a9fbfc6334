import pyarrow as pa
from dora import Node

node = Node()
for event in node:
    if event["type"] == "INPUT":
        total = sum(event["value"].to_pylist())
        node.send_service_response("response", pa.array([total]), event["metadata"])
