import enum


class Status(enum.Enum):
    ODD = 7


class Operator:
    def on_event(self, dora_event, send_output):
        return Status.ODD
