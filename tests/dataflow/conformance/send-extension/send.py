import uuid

import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            storage = pa.array([uuid.UUID(int=1).bytes], pa.binary(16))
            send_output("x", pa.ExtensionArray.from_storage(pa.uuid(), storage))
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
