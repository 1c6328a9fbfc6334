import json
import os
import sys
from pathlib import Path

from dora import Node

node = Node()
line = {
    "args": sys.argv[1:],
    "PLACE": os.environ["PLACE"],
    "NUMBER": os.environ["NUMBER"],
    "directory": Path.cwd().name,
}
print(json.dumps(line))
