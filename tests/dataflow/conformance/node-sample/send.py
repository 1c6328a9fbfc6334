import json

import numpy as np
from dora import Node

node = Node()
node.next()


def attempt(what, call):
    try:
        call()
        print(json.dumps({what: "ok"}))
    except Exception as error:
        print(json.dumps({what: type(error).__name__}))


def fail():
    with node.send_output_raw("out", 2):
        raise KeyError("not sent")


sample = node.send_output_raw("out", 3)
view = sample.as_memoryview()
view[:] = b"abc"
attempt("send with a view", sample.send)
view.release()
attempt("send", sample.send)
attempt("send twice", sample.send)
attempt("view after send", sample.as_memoryview)
attempt("buffer after send", sample.as_buffer)
attempt("enter after send", sample.__enter__)
with node.send_output_raw("out", 2) as buffer:
    array = np.frombuffer(buffer, dtype=np.uint8)
    array[:] = 7
    del array
attempt("raise inside", fail)
attempt("negative", lambda: node.send_output_raw("out", -1))
attempt("float", lambda: node.send_output_raw("out", 1.5))
attempt("metadata", lambda: node.send_output_raw("out", 1, 5))
sample = node.send_output_raw("out", 1)
memoryview(sample.as_buffer())[0] = 9
attempt("filled by a buffer", sample.send)
