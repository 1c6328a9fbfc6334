import pyarrow as pa
from dora import Node

node = Node()
session = 0
for event in node:
    if event["type"] != "INPUT":
        continue
    words = event["value"][0].as_py().split()
    for number, word in enumerate(words):
        metadata = {
            "session_id": f"s{session}",
            "segment_id": "0",
            "seq": number,
            "fin": number == len(words) - 1,
        }
        node.send_output("token", pa.array([word]), metadata)
    session += 1
