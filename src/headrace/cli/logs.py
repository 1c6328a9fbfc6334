"""What `headrace run` logs: lines of text, or of JSON with the pipeline, the epoch and the operator."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigurationError
from headrace.base.log_lines import ROOT, JsonFormatter
from headrace.base.secrets import Secrets
from headrace.cli.progress import EVERY, Display, own_stderr, progress_line

if TYPE_CHECKING:
    from headrace.jobs.progress import Progress, RunResult
    from headrace.jobs.settings import LogSettings

FILE_BYTES = 50_000_000
"""How large a log file becomes before the next one begins."""
FILES = 4
"""How many log files of a run are kept."""
_DEFAULT_LEVELS = {"text": "warning", "json": "info"}

_log = logging.getLogger("headrace.run")


@contextmanager
def logging_for(log: LogSettings, *, pipeline: str, secrets: Secrets) -> Iterator[None]:
    """Within the context, write what Headrace logs to stderr, and JSON also to a file in `[log] dir`.

    Secrets are masked.
    """
    with ExitStack() as stack:
        handlers: list[logging.Handler] = []
        formatter: logging.Formatter
        if log.format == "json":
            formatter = JsonFormatter(secrets, pipeline=pipeline)
            handlers.append(logging.StreamHandler(stack.enter_context(own_stderr())))
            if log.dir is not None:
                handlers.append(_file_handler(Path(log.dir)))
        else:
            formatter = _TextFormatter(secrets)
            handlers.append(_Stderr())
        for handler in handlers:
            handler.setFormatter(formatter)
            stack.callback(handler.close)
            stack.enter_context(_attached(handler))
        stack.enter_context(_levels({"": _DEFAULT_LEVELS[log.format], **log.level}))
        yield


def note(message: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log something that a run without JSON says on its terminal."""
    _log.log(level, "%s", message, extra={"fields": fields})


def note_result(result: RunResult) -> None:
    """Log what a run did."""
    note(
        f"{result.reason} after {result.epochs} epochs",
        reason=result.reason,
        epochs=result.epochs,
        epoch=result.last_epoch if result.epochs else None,
        rows_in=result.rows_in,
        rows_out=result.rows_out,
        late_rows=result.late_rows,
        state_bytes=result.state_bytes,
        seconds=round(result.seconds, 3),
    )


class LogDisplay(Display):
    """Logs the progress every few seconds, and messages at once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0
        self._latest: Progress | None = None

    def update(self, progress: Progress) -> None:
        """Keep the latest progress; the next tick that is due logs it."""
        self._latest = progress

    def say(self, message: str) -> None:
        """Log the message."""
        note(message)

    def tick(self) -> None:
        """Log the latest progress if the last one is long enough ago."""
        progress, now = self._latest, self._clock()
        if progress is None or now < self._due:
            return
        self._due, self._latest = now + EVERY, None
        note(
            progress_line(progress),
            epoch=progress.epoch,
            rows_in=progress.total_in,
            rows_out=progress.total_out,
            rows_per_second=round(progress.rows_per_second, 1),
            late_rows=progress.late_rows,
            state_bytes=progress.state_bytes,
            seconds=round(progress.seconds, 4),
        )


class _Stderr(logging.StreamHandler[Any]):
    """Writes to what stderr is at the time: a status line may stand in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


class _TextFormatter(logging.Formatter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._hide = secrets.hide

    def format(self, record: logging.LogRecord) -> str:
        return self._hide(super().format(record))


def _file_handler(directory: Path) -> logging.Handler:
    path = directory / f"headrace-{os.getpid()}.jsonl"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the log directory {directory} cannot be written: {error.strerror}",
            hint="choose another with --log-dir or [log] dir",
        ) from error
    return RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")


@contextmanager
def _attached(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def _levels(levels: Mapping[str, str]) -> Iterator[None]:
    """Within the context, log the areas from these levels on; the area without a name is for all others."""
    loggers = {logging.getLogger(f"{ROOT}.{area}" if area else ROOT): level for area, level in levels.items()}
    before = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        for logger, number in before.items():
            logger.setLevel(number)
