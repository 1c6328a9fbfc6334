"""Notices a standalone master that is there, and does not register this application.

A master of another version cannot read who asks it, and says nothing; Spark gives up after a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.base.errors import HeadraceError, RefusedError
from headrace.exchanges.spark.masters import check_master, is_standalone

PATIENCE = 5.0
"""Seconds that a master which answers other questions has for this one: it takes milliseconds."""
_ASKED, _REGISTERED = b"Connecting to master", b"Connected to Spark cluster"
"""What the log says when the master is asked, and when it has answered."""
_LOOK_EVERY = 0.2


@contextmanager
def registration(master: str, version: str, log: Path | None, end_java: Callable[[], None]) -> Iterator[None]:
    """Start Spark in the block; `end_java` ends it early, with an error, if a master that is there is silent.

    `log` is Spark's, and `version` that of PySpark.
    """
    if not is_standalone(master) or log is None:
        yield
        return
    is_over, is_silent = threading.Event(), threading.Event()

    def watch() -> None:
        asked: float | None = None
        while not is_over.wait(_LOOK_EVERY) and _REGISTERED not in (text := log.read_bytes()):
            if asked is None:
                asked = time.monotonic() if _ASKED in text else None
            elif time.monotonic() - asked > PATIENCE and _answers(master):
                is_silent.set()
                end_java()
                return

    watcher = threading.Thread(target=watch, name="headrace-registration", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if is_silent.is_set():
            raise _silent(master, version) from error
        raise
    finally:
        is_over.set()
        watcher.join()


def _answers(master: str) -> bool:
    """Whether the master answers what every version understands."""
    try:
        check_master(master, environ={})
    except HeadraceError:
        return False
    return True


def _silent(master: str, version: str) -> RefusedError:
    release = ".".join(version.split(".")[:2])
    return RefusedError(
        f"the master at `{master}` is there, and did not register this application within {PATIENCE:.0f} s: "
        f"most likely it is not Spark {release}, which PySpark is here ({version})",
        hint="its web page (port 8080 by default) and its log show its version: pip install 'pyspark==4.0.*' "
        "if it is 4.0; or it asks for authentication: --conf spark.authenticate=true and its secret",
    )
