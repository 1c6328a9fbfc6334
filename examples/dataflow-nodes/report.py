"""A sink: takes events until there are no more, then says what it has seen."""

import os

from dora import Node  # type: ignore[import-not-found]

node = Node()
seen = {"level": 0, "alarm": 0}
for event in node:
    if event["type"] == "INPUT":
        seen[event["id"]] += 1
        if event["id"] == "alarm":
            print(f"alarm at {event['value'][0]} {event['metadata']['unit']}")
print(f"station {os.environ['STATION']}: {seen['level']} levels, {seen['alarm']} alarms")
