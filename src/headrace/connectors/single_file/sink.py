"""The `single_file` sink: write rows as the lines of one local file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.columns import RETRACT
from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.file_lock import lock_for_commit
from headrace.connectors.base import (
    Connector,
    Delivery,
    stage,
    unify_schemas,
    unstage,
    without_event_time,
)
from headrace.connectors.single_file.path import absolute_path, suggest_path
from headrace.formats.options import LineFormatOptions
from headrace.model.operator import (
    ArrowOperator,
    CheckpointBarrier,
    Collector,
    OperatorContext,
)
from headrace.state.config import TableConfig, global_table_config


class SingleFileSink(Connector, ArrowOperator):
    r"""Writes committed rows to one local file as lines; the file holds exactly what was committed.

    One subtask stages the lines of an epoch. After the commit point the driver truncates the file to its
    committed length and appends them, so after a crash at any moment a resumed pipeline has lost and repeated
    nothing. The file is locked meanwhile, and a run that was replaced leaves it as it is. A pipeline that
    starts without state overwrites the file. With the format `debezium_json`, the changes of one epoch to one
    row are written as one.

    Args:
        options: an `Options` object, or each option by its name.

    Raises:
        ConfigurationError: an option is wrong.

    >>> import headrace as hr, pathlib, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> path = pathlib.Path(tempfile.mkdtemp(), "sales.json")
    >>> pipeline = hr.Pipeline()
    >>> sales = pipeline.source("memory", rows=[{"shop": "mill", "amount": 3}])
    >>> sales.sink(hr.SingleFileSink(path=str(path), format="json"))
    Stream(memory_1: shop TEXT, amount BIGINT)
    >>> result = run_in_process(pipeline, tempfile.mkdtemp())
    >>> path.read_text()
    '{"shop":"mill","amount":3}\n'
    """

    max_parallelism = 1

    deliveries = (
        Delivery(
            "exactly once",
            "an epoch is appended by its commit; a retried commit first truncates the file",
        ),
    )

    class Options(LineFormatOptions):
        """The options of the single_file sink."""

        path: str = Field(min_length=1, description="The file to write, on the machine of the driver.")
        with_timestamp: bool = Field(
            default=False, description="Whether to write the event time column `_timestamp` too."
        )
        wait_for_control: bool = Field(
            default=False, description="Accepted for compatibility; it has no effect."
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.with_timestamp and self.columns is not None:
                raise ValueError("name `_timestamp` among the columns instead of `with_timestamp`")
            return self

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._path = absolute_path(self.options.path)
        self._format = self.options.format_for(self.options.columns)
        self._batches: list[pa.RecordBatch] = []

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether the format can express retractions."""
        return self._format.updating

    def tables(self) -> Sequence[TableConfig]:
        """Declare one global table with the length of the file."""
        return [global_table_config("f", "The committed length of the file in bytes.")]

    def validate(self) -> None:
        """Raise an error for a path that cannot be written."""
        _check_writable(self._path)

    def claims(self) -> Sequence[str]:
        """Return the file: two sinks would overwrite each other's rows."""
        return [f"the file {Path(self.options.path).resolve()}"]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        self._format.check(batch.schema)
        if self.options.columns is None and not self.options.with_timestamp:
            batch = without_event_time(batch)
        ctx.metrics.add("rows", batch.num_rows)
        self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the lines of the epoch, and store the new length of the file."""
        batches, self._batches = self._batches, []
        if any(RETRACT in batch.schema.names for batch in batches):
            # What happened to a row is told by all its changes of the epoch together.
            batches = [pa.Table.from_batches(unify_schemas(batches))]
        lines = b"".join(self._format.encode(batch) for batch in batches)
        table = ctx.global_table("f")
        start: int = table.get("length", 0)
        if batches and not start:
            lines = self._format.head(batches[0].schema) + lines
        table.insert("length", start + len(lines))
        ctx.insert_committing_data("f", stage(ctx, "lines.json", lines, start_length=start))

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Truncate the file to the start of the epoch, and append the epoch's lines durably."""
        for staged in data.get("f", {}).values():
            lines, described = unstage(ctx, staged)
            _append(self._path, described["start_length"], lines, check=ctx.check_generation)


def _append(path: Path, start: int, lines: bytes, *, check: Callable[[], None]) -> None:
    """Replace what follows `start` by these lines, unless `check` raises once the file is locked."""
    try:
        new = not path.exists()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            lock_for_commit(file, path, where="single_file")
            check()
            size = file.seek(0, os.SEEK_END)
            if size < start:
                raise ConfigurationError(
                    f"`{path}` was changed from outside: {start} bytes were committed, {size} are there",
                    hint="put the file back, or start the pipeline anew with another state directory",
                )
            if size > start:
                file.truncate(start)
            file.seek(start)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if new:
            directory = os.open(path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
    except OSError as error:
        raise ExternalError(f"`{path}` cannot be written: {error.strerror}", where="single_file") from None


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise ConfigurationError(f"`{path}` is a directory, not a file")
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"there is no directory `{path.parent}`",
            hint=suggest_path(path.parent) or f"mkdir -p {path.parent}",
        )
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"`{path}` is not a regular file", hint="use the `stdout` sink for pipes")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"`{path}` may not be written", hint="check its permissions")
