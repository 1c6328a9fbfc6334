import pyarrow as pa
from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        for n in range(30):
            send_output("n", pa.array([n]))
        return DoraStatus.STOP
