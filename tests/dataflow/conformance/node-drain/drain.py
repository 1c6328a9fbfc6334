import json
import sys
import time

from dora import Node


def numbers(events):
    return [event["value"][0].as_py() for event in events if event["type"] == "INPUT"]


node = Node()
seen = numbers([node.next()])
time.sleep(1)  # the others are sent meanwhile
if "try_recv" in sys.argv:
    while (event := node.try_recv()) is not None:
        seen += numbers([event])
elif "next" in sys.argv:
    while (event := node.next(timeout=0.001)) is not None and event["type"] == "INPUT":
        seen += numbers([event])
else:
    seen += numbers(node.drain())
print(json.dumps({"seen": len(seen), "in order": seen == sorted(seen), "last": seen[-1]}))
