from dora import Node

node = Node()
for ticks, _event in enumerate(node, start=1):
    if ticks <= 2:
        print("hello", ticks, flush=True)
    if ticks == 15:
        break
