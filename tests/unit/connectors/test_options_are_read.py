"""Every option of every connector is read somewhere, or refused: none is accepted and ignored."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, Literal

import pytest

import headrace
from headrace.base.errors import ConfigurationError
from headrace.base.options import Options, parse_options
from headrace.model.registry import BUILT_IN, registry

SOURCE = Path(headrace.__file__).parent
KINDS: tuple[Literal["source", "sink", "lookup"], ...] = ("source", "sink", "lookup")
CONNECTORS = [(kind, name) for kind in KINDS for name in BUILT_IN[kind]]
WITHOUT_EFFECT = re.compile("no effect|not used|not supported|accepted")
"""How the reference says that an option of other products is taken and changes nothing."""
NO_EFFECT = {("sink", "blackhole")}
"""Its reference says that format options are checked and have no effect."""


def attributes_read(path: Path) -> set[str]:
    """The attributes and strings of a module outside of the declarations of options."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            found |= {str(part.value) for part in node.args if isinstance(part, ast.Constant)}
    return found


READ = {path: attributes_read(path) for path in SOURCE.rglob("*.py")}
WRITING = {"parquet_compression", "parquet_row_group_size", "avro_compression", "json_compression"}
READING = {"max_record_bytes", "framing", "framing_max_length"}


@pytest.mark.parametrize(("kind", "name"), CONNECTORS)
def test_an_option_is_read_by_the_connector_or_by_what_it_shares_with_others(kind: Any, name: str) -> None:
    if (kind, name) in NO_EFFECT:
        return
    model: type[Options] = registry.options(kind, name)
    owners = {Path(inspect.getfile(owner)) for owner in model.__mro__ if issubclass(owner, Options)}
    folders = {owner.parent for owner in owners} | {SOURCE / "formats", SOURCE / "connectors" / "_shared"}
    owners |= {SOURCE / "connectors" / "received.py", SOURCE / "connectors" / "base.py"}
    near = {
        attribute
        for path, attributes in READ.items()
        if path in owners or any(folder in path.parents for folder in folders)
        for attribute in attributes
    }
    for option, field in model.model_fields.items():
        if not WITHOUT_EFFECT.search(field.description or ""):
            assert option in near, f"{kind} {name}: nothing reads the option `{option}`"


@pytest.mark.parametrize(("kind", "name"), CONNECTORS)
def test_options_of_the_other_side_are_not_declared(kind: Any, name: str) -> None:
    declared = registry.options(kind, name).model_fields.keys()
    assert not declared & (READING if kind == "sink" else WRITING)


@pytest.mark.parametrize("name", BUILT_IN["sink"])
def test_a_sink_refuses_the_limit_of_records_and_dead_letters(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown option `max_record_bytes`"):
        registry.build("sink", name, {"max_record_bytes": 5})
    message = "unknown option `bad_data`"
    if "bad_data" in registry.options("sink", name).model_fields:
        message = "`bad_data`: 'dead_letter' is for sources.*write 'drop' or 'fail'"
    with pytest.raises(ConfigurationError, match=message):
        registry.build("sink", name, {"bad_data": "dead_letter"})


def test_a_sink_that_cannot_go_on_without_a_row_has_no_option_for_it() -> None:
    """Sinks with the option pass it to `accept_rows`."""
    with_option = {
        name for name in registry.names("sink") if "bad_data" in registry.options("sink", name).model_fields
    }
    assert not with_option & {"stdout", "single_file", "blackhole"}
    assert {"kafka", "filesystem", "webhook", "redis"} <= with_option


WRONG_VALUES: tuple[Any, ...] = ("wrong ~ value", -1, 0, 2.5, "", None, [3], [], {"a": 1}, {3: 4}, object())
WORDS_OF_PYDANTIC = re.compile(
    "Input should|should be a|should have|should match|unable to parse|Value error|valid dict"
)


@pytest.mark.parametrize(("kind", "name"), CONNECTORS)
def test_a_wrong_value_of_an_option_is_told_in_the_words_of_the_product(kind: Any, name: str) -> None:
    model = registry.options(kind, name)
    for option, field in model.model_fields.items():
        for value in WRONG_VALUES:
            try:
                parse_options(model, {field.alias or option: value}, what=name)
            except ConfigurationError as error:
                assert not WORDS_OF_PYDANTIC.search(error.message), error.message  # noqa: PT017
