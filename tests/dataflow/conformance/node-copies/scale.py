import argparse
import os

import pyarrow as pa
from dora import Node

parser = argparse.ArgumentParser()
parser.add_argument("--by", type=int, required=True)
by = parser.parse_args().by
node = Node("scale")  # the name of the program, not of the node
for event in node:
    if event["type"] == "INPUT":
        node.send_output("scaled", pa.array([event["value"][0].as_py() * by]), {"label": os.environ["LABEL"]})
