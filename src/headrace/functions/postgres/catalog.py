"""Every function of PostgreSQL that Headrace adds, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.functions.postgres.json import JSON_FUNCTIONS
from headrace.functions.postgres.number_patterns import PATTERN_FUNCTIONS
from headrace.functions.postgres.numbers import NUMBER_FUNCTIONS
from headrace.functions.postgres.overload import Overload
from headrace.functions.postgres.texts import TEXT_FUNCTIONS
from headrace.functions.postgres.times import TIME_FUNCTIONS

OVERLOADS: Final = (*TEXT_FUNCTIONS, *TIME_FUNCTIONS, *NUMBER_FUNCTIONS, *PATTERN_FUNCTIONS, *JSON_FUNCTIONS)


def _by_name() -> Mapping[str, Sequence[Overload]]:
    functions: defaultdict[str, list[Overload]] = defaultdict(list)
    for overload in OVERLOADS:
        functions[overload.name].append(overload)
    return dict(functions)


BY_NAME: Final = _by_name()
REWRITTEN: Final = frozenset({"array_lower", "array_upper", "pg_typeof", "timezone", "trim_array"})
"""Functions that the binder writes in terms of others, because they take values of any type."""
PUBLIC: Final = frozenset(overload.name for overload in OVERLOADS if not overload.internal) | REWRITTEN
"""The names that users write."""
