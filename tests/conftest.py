"""For all tests: no Java is started for a command that is run in the process of the tests."""

import pytest

from headrace.spark.session import Wanted


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """The Spark that was asked for before a program was read; it is not started."""
    wanted: list[Wanted] = []
    monkeypatch.setattr("headrace.spark.session.open_early", wanted.append)
    return wanted
