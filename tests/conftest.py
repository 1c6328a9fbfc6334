"""For all tests: no Java is started for a command that is run in the process of the tests; no time limits."""

import signal

import pytest
from hypothesis import settings

from headrace.connectors import received
from headrace.exchanges.spark.session import SparkRequest

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a background job of a shell. The commands that tests start would inherit it, and ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that is told to end has its time, on a busy machine as well."""
    monkeypatch.setattr(received, "CLOSE_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[SparkRequest]:
    """The Spark that was asked for before a program was read; it is not started."""
    wanted: list[SparkRequest] = []
    monkeypatch.setattr("headrace.exchanges.spark.session.open_early", wanted.append)
    return wanted
