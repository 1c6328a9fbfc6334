from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "STOP" and dora_event["id"] == "MANUAL":
            print('{"stopped": "by hand"}')
        return DoraStatus.CONTINUE
