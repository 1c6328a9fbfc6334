"""Declared options: one schema per connector or operator, validated with words a person can use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from headrace.durations import format_duration, parse_duration
from headrace.errors import ConfigurationError, HeadraceError, near


class Options(BaseModel):
    """The base of every declared set of options: typed, frozen, no unknown keys."""

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
"""An option that takes `10s`, `1h 30m`, a number of seconds or a timedelta."""

AnyOptions = TypeVar("AnyOptions", bound=Options)


def parse_options(model: type[AnyOptions], values: Mapping[str, Any], *, what: str) -> AnyOptions:
    """Validate `values` against `model`; every problem is named in one ConfigurationError."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigurationError(_explain(error, model, what)) from None


def _explain(error: ValidationError, model: type[Options], what: str) -> str:
    known = [field.alias or name for name, field in model.model_fields.items()]
    problems = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            suggestion = near(name, known) or (
                f"the options are {', '.join(known)}" if known else "it takes no options"
            )
            problems.append(f"unknown option `{name}`: {suggestion}")
        elif item["type"] == "missing":
            problems.append(f"option `{name}` is required")
        elif not item["loc"]:
            problems.append(item["msg"].removeprefix("Value error, "))
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"option `{name}`: {message}, got {item['input']!r}")
    if len(problems) == 1:
        return f"{what}: {problems[0]}"
    return f"{what}:\n" + "\n".join(f"  - {problem}" for problem in problems)
