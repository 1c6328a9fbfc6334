import pyarrow as pa
from dora import Node

node = Node()
n = 0
for event in node:
    if event["type"] == "INPUT":
        if n < 5:
            node.send_output("n", pa.array([n]), {"k": n})
        n += 1
        if n == 15:
            break
