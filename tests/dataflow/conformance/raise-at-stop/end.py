from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "STOP":
            raise ValueError("boom at the stop")
        return DoraStatus.CONTINUE
