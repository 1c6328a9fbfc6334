import threading

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            thread = threading.Thread(target=send_output, args=("n", dora_event["value"]))
            thread.start()
            thread.join()
        return DoraStatus.CONTINUE
