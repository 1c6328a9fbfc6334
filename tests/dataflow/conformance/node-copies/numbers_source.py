import pyarrow as pa
from dora import Node

node = Node()
for number in range(4):
    node.next()
    node.send_output("number", pa.array([number]))
