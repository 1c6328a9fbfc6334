import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT_CLOSED":
            send_output("n", pa.array([99]))
        return DoraStatus.CONTINUE
