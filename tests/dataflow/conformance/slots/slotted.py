import json

from dora import DoraStatus


class Base:
    step = 1

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.add(dora_event["value"][0].as_py())
            print(json.dumps({"total": self.total}))
        return DoraStatus.CONTINUE


class Operator(Base):
    __slots__ = ("_total", "dataflow_descriptor")

    def __init__(self):
        self._total = 0

    @property
    def total(self):
        return self._total

    def add(self, n):
        self._total += n * self.step
