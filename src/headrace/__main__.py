"""`python -m headrace` is the command `headrace`."""

from headrace.cli.interrupts import end_at_once_on_signals


def main() -> None:
    """Run the command line; from here on no signal shows a traceback, not even while it is imported."""
    end_at_once_on_signals()
    from headrace.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
