"""Whatever has an outside system can be asked whether it is there."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.connectors.base import Connector
from headrace.model.registry import registry

WITHOUT = {"blackhole", "impulse", "memory", "nexmark", "single_file", "stdout"}
"""Those that need nothing but this machine."""
SPARKS_OWN = {"spark"}
"""Only Spark knows how its sources and sinks are reached."""


@pytest.mark.parametrize("role", ["source", "sink", "lookup"])
def test_a_connector_answers_for_its_outside_system(role: Any) -> None:
    connectors = {name: registry.constructor(role, name) for name in registry.names(role)}
    silent = {
        name
        for name, connector in connectors.items()
        if isinstance(connector, type)
        and issubclass(connector, Connector)
        and connector.reach is Connector.reach
    }
    assert silent <= WITHOUT | SPARKS_OWN
