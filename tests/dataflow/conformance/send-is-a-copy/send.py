import numpy as np
import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            buffer = np.zeros(3, dtype=np.int64)
            for n in range(3):
                buffer[:] = n
                # The array is a view of the buffer.
                send_output("x", pa.array(buffer))
            buffer[:] = 99
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
