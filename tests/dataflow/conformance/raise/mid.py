from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        n = dora_event["value"][0].as_py()
        send_output("n", dora_event["value"])
        if n == 2:
            raise ValueError("boom at two")
        return DoraStatus.CONTINUE
