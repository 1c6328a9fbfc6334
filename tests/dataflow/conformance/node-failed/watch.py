import json

from dora import Node

for event in Node():
    shown = {"type": event["type"], "id": event["id"]}
    if event["type"] == "INPUT":
        shown["value"] = event["value"].to_pylist()
    elif "value" in event:
        failure = event["value"]
        shown["from"], shown["affected"] = failure["source_node_id"], sorted(failure["affected_input_ids"])
        shown["why"] = "no more numbers" in failure["error"]
    print(json.dumps(shown))
