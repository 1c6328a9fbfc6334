"""`python -m tests.soak epochs|faults|server [OPTION …]`: a long run, and whether it ended as it must."""

from __future__ import annotations

import sys

from tests.soak import epochs, faults, server

COMMANDS = {"epochs": epochs.main, "faults": faults.main, "server": server.main}


def main() -> int:
    """Run what the command line names."""
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.stderr.write(f"usage: python -m tests.soak {'|'.join(COMMANDS)} [OPTION …]\n")
        return 2
    return COMMANDS[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
