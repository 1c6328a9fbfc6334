import json

import pyarrow as pa
from dora import Node

node = Node()
sent, feedback, results = 0, [], []
for event in node:
    if event["type"] != "INPUT":
        break
    metadata = event["metadata"]
    if event["id"] == "tick" and sent < 2:
        node.send_output("goal", pa.array([2 + sent]), {"goal_id": f"g{sent}"})
        sent += 1
    elif event["id"] == "feedback":
        feedback.append([metadata["goal_id"], event["value"][0].as_py()])
    elif event["id"] == "result":
        results.append([metadata["goal_id"], metadata["goal_status"], event["value"][0].as_py()])
    if len(results) == 2 and len(feedback) == 5:
        break
print(json.dumps({"feedback": sorted(feedback), "results": results}))
