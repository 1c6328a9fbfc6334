"""Output of the units of a dataflow: on stdout with their names, and in a log file for each."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.base.errors import HeadraceError
from headrace.base.secrets import Secrets
from headrace.dataflow.runtime.printed import LOGGER, Line, publish


class _Lines(logging.Handler):
    def __init__(self, directory: Path | None, secrets: Secrets) -> None:
        super().__init__()
        self._directory = directory
        self._hide = secrets.hide
        self._terminal = sys.stdout.isatty()

    def emit(self, record: logging.LogRecord) -> None:
        line: Line = record.printed  # type: ignore[attr-defined]
        label = "" if line.stream == "stdout" else f"{line.stream} "
        at = time.strftime("%H:%M:%S ", time.localtime(line.time)) if self._terminal else ""
        for text in self._hide(line.text).splitlines() or [""]:
            sys.stdout.write(f"{at}{label}{line.unit}: {text}\n")
        sys.stdout.flush()
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            name = line.unit.replace("/", ".")
            with (self._directory / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(self._hide(line.to_json()) + "\n")


@contextmanager
def unit_lines(directory: str | None, secrets: Secrets) -> Iterator[None]:
    """Within the context, show the output of units, also that of an epoch that failed.

    The files are written to `logs` in `directory`, unless it is a URL.
    """
    log_directory = None if directory is None or "://" in directory else Path(directory) / "logs"
    handler, logger = _Lines(log_directory, secrets), logging.getLogger(LOGGER)
    before, logger.propagate = logger.level, False
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    except HeadraceError as error:
        publish([line for line in error.printed if isinstance(line, Line)])
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = True
