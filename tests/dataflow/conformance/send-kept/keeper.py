from dora import DoraStatus


class Operator:
    send = None

    def on_event(self, dora_event, send_output):
        if self.send is None:
            self.send = send_output
        if dora_event["type"] == "INPUT":
            self.send("n", dora_event["value"])
        return DoraStatus.CONTINUE
