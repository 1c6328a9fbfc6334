import sys

from dora import DoraStatus


class Operator:
    def on_event(self, dora_event, send_output):
        print('{"line": 1}')
        sys.stdout.write('{"li')
        sys.stdout.write('ne": 2}\n')
        print('{"line": 3}\n{"line": 4}')
        print("an error", file=sys.stderr)
        print('{"line": 5}', flush=True)
        return DoraStatus.STOP
