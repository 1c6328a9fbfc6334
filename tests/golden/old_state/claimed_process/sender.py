"""Sends 40 numbers, once: a sender that is started again sends nothing."""

import time
from pathlib import Path

import pyarrow as pa
from dora import Node

node, sent = Node(), Path("sent")
if not sent.exists():
    sent.write_text("all of it\n")
    for n in range(40):
        node.send_output("numbers", pa.array([n]), {"half": n / 2})
        time.sleep(0.03)
