from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT_CLOSED":
            raise ValueError("boom at the end")
        return DoraStatus.CONTINUE
