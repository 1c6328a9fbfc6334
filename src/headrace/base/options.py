"""Declared options: one schema per connector or operator, validated with readable errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError
from pydantic_core import ErrorDetails

from headrace.base.durations import format_duration, parse_duration
from headrace.base.errors import ConfigurationError, HeadraceError, suggest


class Options(BaseModel):
    """The base of every declared set of options: typed, frozen, no unknown keys.

    Values may come from SQL, YAML or Python: booleans are also read from `true`, `false`, `yes` and `no`,
    numbers from strings that hold a number.

    Args:
        data: each option by its name.

    Raises:
        pydantic.ValidationError: an option is wrong; connectors, pipelines and the registry raise it as a
            ConfigurationError that names each wrong option.

    >>> import headrace as hr
    >>> from pydantic import Field
    >>> class Polling(hr.Options):
    ...     interval: hr.Duration
    ...     retries: int = 3
    ...     token: str = Field("", repr=False)
    >>> Polling(interval="1m 30s", retries="5", token="hunter2")
    Polling(interval=datetime.timedelta(seconds=90), retries=5)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _read_duration(value: Any) -> Any:
    if isinstance(value, str | int | float | timedelta):
        try:
            return parse_duration(value)
        except HeadraceError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
]
"""The type of an option that takes `10s`, `1h 30m`, a number of seconds or a timedelta."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def _read_size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("write a size as a number of bytes or with a unit, such as `128MB` or `64MiB`")
    number, prefix, binary = match.groups()
    return round(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))


Size = Annotated[int, BeforeValidator(_read_size)]
"""An option that takes a number of bytes, `128MB` (a million bytes each) or `64MiB`."""


def _read_names(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return [
        name.strip() for name in value.strip().removeprefix("[").removesuffix("]").split(",") if name.strip()
    ]


Names = Annotated[list[str], BeforeValidator(_read_names)]
"""An option that takes a list of names, or one comma-separated string."""


def _read_secret(value: Any) -> Any:
    return value if value is None else str(value)  # a refused value would be shown


Secret = Annotated[
    str, BeforeValidator(_read_secret), PlainSerializer(lambda _: "***", return_type=str, when_used="json")
]
"""An option that is never displayed."""


def read_settings(value: Any) -> Any:
    """Parse `name=value,name=value` into a mapping; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    settings: dict[str, str] = {}
    for number, part in enumerate(filter(None, (part.strip() for part in value.split(","))), 1):
        name, equals, setting = part.partition("=")
        if not equals or not name.strip():
            # It may be the end of a password with a comma, so it is not shown.
            raise ValueError(f"write settings as `name=value,name=value`; number {number} is no such pair")
        settings[name.strip()] = setting.strip()
    return settings


AnyOptions = TypeVar("AnyOptions", bound=Options)


def parse_options(model: type[AnyOptions], values: Mapping[str, Any], *, what: str) -> AnyOptions:
    """Validate `values` against `model`; every problem is named in one ConfigurationError."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems = [_explain(item, model) for item in error.errors()]
    if len(problems) == 1:
        message = f"{what}: {problems[0][1]}"
    else:
        message = f"{what}:\n" + "\n".join(f"  - {problem}" for _, problem in problems)
    refused = ConfigurationError(message)
    refused.problems = problems
    raise refused


def _explain(item: ErrorDetails, model: type[Options]) -> tuple[str | None, str]:
    """Return the option that is wrong, None if it is a combination, and what is wrong."""
    if not item["loc"]:
        return None, item["msg"].removeprefix("Value error, ")
    option, name = str(item["loc"][0]), ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        options = [field.alias or name for name, field in model.model_fields.items()]
        suggestion = suggest(name, options, listing="the options are") or "it takes no options"
        return option, f"unknown option `{name}`: {suggestion}"
    if item["type"] == "missing":
        return option, f"option `{name}` is required"
    message = f"option `{name}`: {item['msg'].removeprefix('Value error, ')}"
    if _is_hidden(option, model):
        return option, message
    message = f"{message}, got {item['input']!r}"
    near = _suggest_value(item)
    return option, message if near is None else f"{message}: {near}"


def _is_hidden(option: str, model: type[Options]) -> bool:
    """Whether the value of an option is never displayed."""
    return any(not field.repr for name, field in model.model_fields.items() if option in {name, field.alias})


_QUOTED = re.compile(r"'([^']*)'")


def _suggest_value(item: ErrorDetails) -> str | None:
    """Return the similar values of an enumeration; the message lists them all."""
    if item["type"] not in {"literal_error", "enum"} or not isinstance(item["input"], str):
        return None
    values = _QUOTED.findall(item["ctx"]["expected"])
    by_lower_case = {value.lower(): value for value in values}
    value = item["input"].strip()
    return suggest(by_lower_case.get(value.lower(), value), values)
