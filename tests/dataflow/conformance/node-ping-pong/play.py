import json
import sys
import time

import pyarrow as pa
from dora import Node

node = Node()
if "serve" in sys.argv:
    time.sleep(0.5)  # dora: until the other one listens
    node.send_output("ball", pa.array([0]))
for event in node:
    if event["type"] != "INPUT":
        break
    hit = event["value"][0].as_py()
    print(json.dumps({"hit": hit}))
    if hit < 6:
        node.send_output("ball", pa.array([hit + 1]))
    if hit >= 5:
        time.sleep(0.5)
        break
