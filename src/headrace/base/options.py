"""Declared options: one schema per connector or operator, validated with readable errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from headrace.base.durations import format_duration, parse_duration
from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.base.option_errors import explain_problem


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
        problems = [explain_problem(item, model) for item in error.errors()]
    if len(problems) == 1:
        message = f"{what}: {problems[0][1]}"
    else:
        message = f"{what}:\n" + "\n".join(f"  - {problem}" for _, problem in problems)
    refused = ConfigurationError(message)
    refused.problems = problems
    raise refused
