import json
from pathlib import Path

from dora import DoraStatus


def show(where):
    print(json.dumps({"where": where, "text": Path("note.txt").read_text().strip()}))


show("import")


class Operator:
    def __init__(self):
        show("__init__")

    def on_event(self, dora_event, send_output):
        show("on_event")
        return DoraStatus.STOP
