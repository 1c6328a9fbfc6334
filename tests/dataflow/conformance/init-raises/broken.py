class Operator:
    def __init__(self):
        raise ValueError("in __init__")

    def on_event(self, dora_event, send_output):
        raise NotImplementedError
