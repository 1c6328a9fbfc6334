import pyarrow as pa
from dora import Node

node = Node()
for event in node:
    if event["type"] == "INPUT":
        node.send_output("n", pa.array([2 * event["value"][0].as_py()]), event["metadata"])
