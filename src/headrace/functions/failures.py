"""Carries an error out of a Python function that DataFusion calls.

DataFusion turns an exception of a Python function into a text of its own. What is raised to it is therefore
only a number, and the error itself waits here for whoever catches DataFusion's.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict

from headrace.base.errors import HeadraceError

_KEPT = 64
_numbers = itertools.count()
_waiting: OrderedDict[int, HeadraceError] = OrderedDict()
_NUMBER = re.compile(r"headrace failure (\d+)")


class FailedError(Exception):
    """Stands for a failure that waits to be taken."""


def keep_failure(error: HeadraceError) -> FailedError:
    """Keep an error until it is taken; raise to DataFusion what this returns."""
    number = next(_numbers)
    _waiting[number] = error
    # DataFusion drops some errors, such as those of constants it tried to compute while planning.
    if len(_waiting) > _KEPT:
        _waiting.popitem(last=False)
    return FailedError(f"headrace failure {number}")


def take_failure(error: BaseException) -> HeadraceError | None:
    """The error of a function of ours that DataFusion reports as `error`; None if that has another cause."""
    found = _NUMBER.search(str(error))
    return _waiting.pop(int(found[1]), None) if found else None
