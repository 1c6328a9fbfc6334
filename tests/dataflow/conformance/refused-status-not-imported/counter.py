class Operator:
    def on_event(self, dora_event, send_output):
        return DoraStatus.CONTINUE  # noqa: F821
