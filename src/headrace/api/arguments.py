"""Checks of the arguments that many methods of the API take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.base.durations import parse_duration
from headrace.base.errors import ConfigurationError, HeadraceError, PlanError


def check_argument(value: object, name: str, kinds: tuple[type, ...], expected: str, *, example: str) -> None:
    """Refuse an argument of another type: `name` takes `expected`, such as `example`."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise PlanError(
            f"`{name}` takes {expected}, got {type(value).__name__} {value!r}", hint=f"such as `{example}`"
        )


def check_callable(value: object, name: str, *, example: str) -> None:
    """Refuse an argument that is neither None nor can be called."""
    if value is not None and not callable(value):
        raise PlanError(
            f"`{name}` takes a function, got {type(value).__name__} {value!r}", hint=f"such as `{example}`"
        )


_LONGEST = timedelta(days=100 * 365)
"""Longer durations are mistakes, and some overflow the nanoseconds of SQL."""


def check_id(id: object, method: str) -> None:  # noqa: A002
    """Refuse an `id` that cannot name an operator, such as an expression for a column called `id`."""
    if id is None:
        return
    if not isinstance(id, str):
        raise PlanError(
            f"`id` names the operator of {method} and is a string, got {type(id).__name__} {id!r}",
            hint=_hint(method),
        )
    if not id or any(not (char.isalnum() or char in "_-.") for char in id):
        raise PlanError(
            f"`{id}` cannot be an id", hint=f"use letters, digits, `-`, `_` and `.`; {_hint(method)}"
        )


def refuse_id_alone(id: object, method: str) -> None:  # noqa: A002
    """Refuse a call whose only argument is `id`: a column of that name is meant."""
    if id is not None:
        raise PlanError(f"`id` names the operator of {method}, and no column is given", hint=_hint(method))


def refuse_column_as_id(id: str | None, columns: Collection[str], method: str) -> None:  # noqa: A002
    """Refuse an `id` that is a column of the stream: a column called `id` is meant."""
    if id is not None and id in columns:
        raise PlanError(
            f"`id` names the operator of {method}, and `{id}` is a column of the stream",
            hint=f"{_hint(method)}; an operator is called otherwise than a column",
        )


def _hint(method: str) -> str:
    if method == "sql":
        return "call the table in the query otherwise: `sql('SELECT … FROM orders', orders=stream)`"
    if method in _WITH_COLUMNS:
        return f"a column called `id` is written `{method}({_WITH_COLUMNS[method]})`"
    return "such as `id='orders'`"


_WITH_COLUMNS = {
    "rename": "{'id': 'new'}",
    "select": "{'id': 'a + b'}",
    "with_columns": "{'id': 'a + b'}",
    "aggregate": "{'id': 'max(a)'}",
}


def check_mapping(value: object, method: str, example: str) -> Mapping[str, Any]:
    """A mapping by names of columns; raises for anything else."""
    if not isinstance(value, Mapping):
        raise PlanError(
            f"{method} takes a mapping of columns, got {type(value).__name__} {value!r}",
            hint=f"write `{example}`",
        )
    for name in value:
        if name == "" or not isinstance(name, str):
            raise PlanError(f"{method} takes the names of columns, got {name!r}", hint=f"write `{example}`")
    return value


def check_duration(value: str | timedelta, option: str) -> timedelta:
    """The duration that an argument gives; raises for what is none, and for one longer than a century."""
    refusal = ConfigurationError(
        f"`{option}` takes a duration, got {value!r}", hint="such as `'10s'`, `'1h 30m'` or a timedelta"
    )
    number = value.strip() if isinstance(value, str) else str(value)
    if not isinstance(value, timedelta) and number.replace(".", "", 1).isdigit():
        refusal.hint = f"a number has no unit; write `'{number}s'` for seconds"
        raise refusal
    if not isinstance(value, str | timedelta):
        raise refusal
    try:
        duration = parse_duration(value)
    except OverflowError:
        duration = timedelta.max
    except (HeadraceError, ValueError):
        raise refusal from None
    if duration > _LONGEST:
        raise ConfigurationError(f"`{option}` is at most {_LONGEST.days} days, got {value!r}")
    return duration


def check_row_count(n: object) -> None:
    """Refuse what is not a number of rows to show."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise PlanError(f"show takes the number of rows to show, got {n!r}")


def check_seconds(timeout: object) -> None:
    """Refuse a `timeout` that is not a number of seconds."""
    if timeout is not None:
        check_argument(timeout, "timeout", (int, float), "seconds", example="timeout=60")


def check_run_arguments(
    state_dir: object,
    on_progress: object,
    *,
    from_epoch: object,
    allow_drop: object,
    watch: object,
    master: object = None,
) -> None:
    """Refuse arguments of a run that cannot work, before Spark starts."""
    if state_dir is not None and not isinstance(state_dir, str | Path):
        raise PlanError(
            f"`state_dir` takes a path, got {type(state_dir).__name__} {state_dir!r}",
            hint="such as `run('state/orders')`; other arguments are passed by name: `run(max_epochs=3)`",
        )
    check_callable(on_progress, "on_progress", example="on_progress=print")
    if from_epoch is not None:
        check_argument(from_epoch, "from_epoch", (int,), "the number of an epoch", example="from_epoch=12")
    if master is not None:
        check_argument(master, "master", (str,), "the URL of a master", example="master='local[4]'")
    for name, value in (("allow_drop", allow_drop), ("watch", watch)):
        check_argument(value, name, (bool,), "True or False", example=f"{name}=True")
