import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if self.ticks == 1:
            for data in (
                pa.array([[1, 2], [], None]),
                pa.array([[1, 2]], pa.large_list(pa.int32())),
                pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
                pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
                pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
                pa.array([{"a": [{"b": 1}]}]),
                pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
                pa.UnionArray.from_sparse(
                    pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
                ),
            ):
                send_output("x", data)
        return DoraStatus.STOP if self.ticks == 15 else DoraStatus.CONTINUE
