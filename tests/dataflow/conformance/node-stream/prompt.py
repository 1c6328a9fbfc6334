import pyarrow as pa
from dora import Node

node = Node()
for text in ("one two three", "four"):
    node.next()
    node.send_output("text", pa.array([text]))
