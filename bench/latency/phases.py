"""`python phases.py MARKS run …`: the command `headrace run …`, saying how far it is at which moment.

Each line of the file MARKS is a time of the clock and what begins then. Functions are wrapped when their
module has been imported, so nothing is imported earlier than it would be; a function that is not there is
left out.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import time
from typing import Any

_POINTS = (
    ("headrace.cli.program", "read_program", "compile the SQL"),
    ("headrace.engine.driver", "EpochDriver.open", "take up the state"),
    ("headrace.exchanges.spark.session", "_launch", "start Java"),
    ("headrace.exchanges.spark.session", "open_spark", "wait for Java and the SparkContext"),
    ("headrace.exchanges.spark.shipping", "ship_code", "find the code to ship"),
    ("headrace.engine.loop", "EpochLoop.run", "plan the first epoch"),
    ("headrace.exchanges.spark.rdd", "RddExchange.run", "start workers, run the first epoch"),
    ("headrace.engine.driver", "EpochDriver.seal", "seal and commit the epoch"),
    ("headrace.connectors.stdout", "_write", "first row"),
)


def _wrap(function: Any, name: str, log: int) -> Any:
    @functools.wraps(function)
    def marked(*given: Any, **named: Any) -> Any:
        os.write(log, f"{time.time():.4f} {name}\n".encode())
        return function(*given, **named)

    return marked


def _mark_when_imported(log: int) -> None:
    left = list(_POINTS)
    imported = builtins.__import__

    def importing(*given: Any, **named: Any) -> Any:
        result = imported(*given, **named)
        for point in tuple(left):
            module, path, name = point
            *owners, last = path.split(".")
            found: Any = sys.modules.get(module)
            for owner in owners:
                found = getattr(found, owner, None)
            if found is not None and hasattr(found, last) and point in left:
                left.remove(point)
                setattr(found, last, _wrap(getattr(found, last), name, log))
        return result

    builtins.__import__ = importing


if __name__ == "__main__":
    marks = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"{time.time():.4f} import Headrace and DataFusion\n".encode())
    _mark_when_imported(marks)
    from headrace.cli.main import main

    main()
