import pyarrow as pa
from dora import Node

node = Node()
beats = 0
while beats < 5:
    event = node.next(timeout=0.1)
    if event["type"] != "INPUT":
        node.send_output("n", pa.array([beats]))
        beats += 1
