from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            send_output("n", dora_event["value"])
        return DoraStatus.CONTINUE
