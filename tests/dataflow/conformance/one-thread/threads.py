import json
import threading

from dora import DoraStatus


def on_main():
    return threading.current_thread() is threading.main_thread()


AT_IMPORT = on_main()


class Operator:
    def __init__(self):
        self.at_init = on_main()

    def on_event(self, dora_event, send_output):
        print(json.dumps({"import": AT_IMPORT, "__init__": self.at_init, "on_event": on_main()}))
        return DoraStatus.STOP
