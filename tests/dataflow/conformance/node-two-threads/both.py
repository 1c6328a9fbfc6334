import json
import sys
import threading
import time

import pyarrow as pa
from dora import Node

node, first = Node(), int(sys.argv[1])


def send() -> None:
    for number in range(first, first + 5):
        time.sleep(0.1)
        node.send_output("number", pa.array([number]))


sender = threading.Thread(target=send)
sender.start()
received = []
while len(received) < 5 and (event := node.next()) is not None:
    if event["type"] == "INPUT":
        received += event["value"].to_pylist()
sender.join()
time.sleep(0.3)  # dora: until the other one has read the last
print(json.dumps({"received": received}))
