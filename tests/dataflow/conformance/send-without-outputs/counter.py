from dora import DoraStatus


class Operator:
    def __init__(self):
        self.counter = 0

    def on_event(self, dora_event, send_output):
        self.counter += 1
        send_output("count", [self.counter])
        return DoraStatus.STOP
