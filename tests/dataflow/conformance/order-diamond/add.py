import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            send_output("n", pa.array([dora_event["value"][0].as_py() + 10]))
        return DoraStatus.CONTINUE
