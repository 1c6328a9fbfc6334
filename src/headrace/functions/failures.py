"""Carries an error out of a Python function that DataFusion calls.

DataFusion turns an exception of a Python function into a string. So only a number is raised to it, and the
error itself is kept here until the caller of DataFusion takes it.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict

from headrace.base.errors import HeadraceError

_MAX_WAITING = 64
_numbers = itertools.count()
_waiting: OrderedDict[int, HeadraceError] = OrderedDict()
_NUMBER = re.compile(r"headrace failure (\d+)")


class FunctionFailedError(Exception):
    """Stands for a failure that is kept until it is taken."""


def keep_failure(error: HeadraceError) -> FunctionFailedError:
    """Keep an error until it is taken; raise the result to DataFusion."""
    number = next(_numbers)
    _waiting[number] = error
    # DataFusion drops some errors, such as those of constants it tried to compute while planning.
    if len(_waiting) > _MAX_WAITING:
        _waiting.popitem(last=False)
    return FunctionFailedError(f"headrace failure {number}")


def take_failure(error: BaseException) -> HeadraceError | None:
    """The error of our function that DataFusion reports as `error`; None if that has another cause."""
    match = _NUMBER.search(str(error))
    return _waiting.pop(int(match[1]), None) if match else None
