raise ValueError("at import")


class Operator:
    def on_event(self, dora_event, send_output):
        raise NotImplementedError
