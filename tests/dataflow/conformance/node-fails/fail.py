from dora import Node

node = Node()
for _event in node:
    raise ValueError("boom in a process")
