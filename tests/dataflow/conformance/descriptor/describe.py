import json

from dora import DoraStatus


class Operator:
    def __init__(self):
        print(json.dumps({"in __init__": hasattr(self, "dataflow_descriptor")}))

    def on_event(self, dora_event, send_output):
        descriptor = self.dataflow_descriptor
        print(json.dumps({"nodes": [node["id"] for node in descriptor["nodes"]]}))
        print(json.dumps({"env": descriptor["env"]}))
        count = descriptor["nodes"][1]["operator"]
        print(json.dumps({"python": count["python"], "outputs": sorted(count["outputs"])}))
        return DoraStatus.STOP
