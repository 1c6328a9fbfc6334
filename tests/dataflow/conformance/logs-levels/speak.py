from dora import Node

node = Node()
for tick, event in enumerate(node):
    if tick == 20:
        node.log_debug("note 1")
        node.log_info("note 2")
        node.log_warn("note 3")
        node.log_error("note 4")
        print("note 5")
    if tick == 40:
        break
