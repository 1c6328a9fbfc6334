"""For all tests: no Java is started for a command that is run in the process of the tests."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Spark was asked for before a program was read; it is not started."""
    wishes: list[dict[str, Any]] = []
    monkeypatch.setattr("headrace.spark.session.open_early", lambda **wish: wishes.append(wish))
    return wishes
