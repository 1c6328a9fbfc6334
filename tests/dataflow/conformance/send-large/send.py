import numpy as np
import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.n = 0

    def on_event(self, dora_event, send_output):
        if self.n < 5:
            send_output("x", pa.array(np.full(1 << 17, self.n)))
        self.n += 1
        return DoraStatus.STOP if self.n == 15 else DoraStatus.CONTINUE
