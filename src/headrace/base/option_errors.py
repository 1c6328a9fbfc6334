"""Explains pydantic's errors: which option is wrong, and what is expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from headrace.base.errors import suggest

_OWN_WORDS = "Value error, "
_EXPECTED: Mapping[str, str] = {
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "finite_number": "a finite number",
    "int_parsing_size": "a whole number with fewer digits",
    "string_too_short": "a string that is not empty",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "a string that matches `{pattern}`",
    "too_short": "a list that is not empty",
    "too_long": "a list of at most {max_length} items",
    "is_instance_of": "an object of {class}",
}
"""What a value must be, by the type of pydantic's error."""
_EXPECTED_KIND: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "`true` or `false`",
    "string": "a string",
    "bytes": "bytes",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "time_delta": "a duration, such as `10s` or `1h 30m`",
    "datetime": "a time, such as `2026-11-15T10:00:00`",
    "path": "a path",
    "callable": "a function",
}
"""The same by the first word of the type, as `int` of `int_parsing`."""


def describe_problem(item: ErrorDetails, name: str) -> str:
    """Say what is wrong with the value of an option, without the value."""
    if item["msg"].startswith(_OWN_WORDS):
        return f"{name}: {item['msg'].removeprefix(_OWN_WORDS)}"
    kind = item["type"]
    expected = _EXPECTED.get(kind) or next(
        (words for first, words in _EXPECTED_KIND.items() if kind.startswith(f"{first}_")), None
    )
    context: dict[str, Any] = item.get("ctx", {})
    return f"{name}: {item['msg']}" if expected is None else f"{name} must be {expected.format(**context)}"


def explain_problem(item: ErrorDetails, model: type[BaseModel]) -> tuple[str | None, str]:
    """Return the option that is wrong, None if it is a combination, and what is wrong."""
    if not item["loc"]:
        return None, item["msg"].removeprefix(_OWN_WORDS)
    option, name = str(item["loc"][0]), ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        options = [field.alias or name for name, field in model.model_fields.items()]
        suggestion = suggest(name, options, listing="the options are") or "it takes no options"
        return option, f"unknown option `{name}`: {suggestion}"
    if item["type"] == "missing":
        return option, f"option `{name}` is required"
    message = describe_problem(item, f"option `{name}`")
    if _is_hidden(option, model):
        return option, message
    message = f"{message}, got {_shown(item['input'])}"
    near = suggest_value(item)
    return option, message if near is None else f"{message}: {near}"


_SHOWN_ITEMS, _SHOWN_CHARACTERS = 5, 200
"""How much of a wrong value is shown."""


def _shown(value: Any) -> str:
    """The value as Python writes it, or its beginning if it is long."""
    if isinstance(value, list | tuple) and len(value) > _SHOWN_ITEMS:
        beginning = ", ".join(map(repr, value[:_SHOWN_ITEMS]))
        text = f"[{beginning}, … ({len(value):,} items)]"
    else:
        text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _is_hidden(option: str, model: type[BaseModel]) -> bool:
    """Whether the value of an option is never displayed."""
    return any(not field.repr for name, field in model.model_fields.items() if option in {name, field.alias})


_QUOTED = re.compile(r"'([^']*)'")


def suggest_value(item: ErrorDetails) -> str | None:
    """Return the similar values of an enumeration; the message lists them all."""
    if item["type"] not in {"literal_error", "enum"} or not isinstance(item["input"], str):
        return None
    values = _QUOTED.findall(item["ctx"]["expected"])
    by_lower_case = {value.lower(): value for value in values}
    value = item["input"].strip()
    return suggest(by_lower_case.get(value.lower(), value), values)
