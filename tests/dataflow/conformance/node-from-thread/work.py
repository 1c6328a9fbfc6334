import os
import threading
import time

import pyarrow as pa
from dora import Node

node = Node()


def work() -> None:
    for n in range(3):
        time.sleep(0.2)
        node.send_output("n", pa.array([n]))
    time.sleep(0.2)
    os._exit(0)


threading.Thread(target=work, daemon=True).start()
for event in node:
    pass
