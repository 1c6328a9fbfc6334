import json


class Operator:
    def on_event(self, dora_event, send_output):
        n = dora_event["value"][0].as_py()
        print(json.dumps({"got": n}))
        raise ValueError(f"boom at {n}")
