import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for data in (
                pa.array(["a", "Grüße", "", None]),
                pa.array(["a", None], pa.large_string()),
                pa.array(["a", None], pa.string_view()),
                pa.array([b"ab", None], pa.binary()),
                pa.array([b"ab"], pa.large_binary()),
                pa.array([b"ab", b"cd"], pa.binary(2)),
                pa.array(["a", "b", "a"]).dictionary_encode(),
            ):
                send_output("x", data)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
