from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            output = "odd" if dora_event["value"][0].as_py() % 2 else "even"
            send_output(output, dora_event["value"])
            send_output(output, dora_event["value"])
        return DoraStatus.CONTINUE
