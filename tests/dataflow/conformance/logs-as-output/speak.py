from dora import DoraStatus


class Operator:
    def __init__(self):
        self.ticks = 0

    def on_event(self, dora_event, send_output):
        self.ticks += 1
        if 10 <= self.ticks < 13:
            print("note", self.ticks - 9)
        return DoraStatus.STOP if self.ticks == 25 else DoraStatus.CONTINUE
