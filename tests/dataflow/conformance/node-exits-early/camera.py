import sys

from dora import Node

node = Node()
node.next(timeout=0.5)
sys.exit("no camera found")
