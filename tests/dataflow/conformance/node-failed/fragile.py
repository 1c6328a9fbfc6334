import time

import pyarrow as pa
from dora import Node

node = Node()
node.next()
node.send_output("number", pa.array([node.restart_count()]))
time.sleep(0.5)  # dora: until the other one has read it
raise RuntimeError("no more numbers")
