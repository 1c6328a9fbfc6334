from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            send_output("y", dora_event["value"], dora_event["metadata"])
        return DoraStatus.CONTINUE
