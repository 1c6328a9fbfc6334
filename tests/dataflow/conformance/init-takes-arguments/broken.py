class Operator:
    def __init__(self, path):
        self.path = path

    def on_event(self, dora_event, send_output):
        raise NotImplementedError
