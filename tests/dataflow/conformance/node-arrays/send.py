import numpy as np
import pyarrow as pa
from dora import Node

node = Node()
node.next()
pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
about = {"width": 2, "height": 2, "encoding": "rgb8", "boxes": [0.5, 1.5], "labels": ["cat", "dog"]}
node.send_output("frame", pa.array(pixels.ravel()), about)
boxes = pa.StructArray.from_arrays(
    [pa.array([[1.0, 2.0], [3.0]]), pa.array(["cat", "dog"]), pa.array([0.5, None])],
    names=["box", "label", "score"],
)
node.send_output("frame", boxes)
node.send_output("frame", pa.RecordBatch.from_pydict({"joint": [1, 2], "angle": [0.1, 0.2]}))
node.send_output("frame", b"\x00\xff")
