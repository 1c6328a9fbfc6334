"""A source: sends readings when it likes, and ends when it has no more."""

import argparse
import time

import pyarrow as pa
from dora import Node  # type: ignore[import-not-found]

parser = argparse.ArgumentParser()
parser.add_argument("--readings", type=int, default=10)
arguments = parser.parse_args()

node = Node()
for number in range(arguments.readings):
    node.send_output("level", pa.array([number % 10]), {"unit": "metre"})
    time.sleep(0.01)
