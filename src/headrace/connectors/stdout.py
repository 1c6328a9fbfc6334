"""The `stdout` sink: print rows as an aligned table on a terminal, as JSON lines to a pipe."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal, TextIO

import pyarrow as pa
from pydantic import Field

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import OutputClosedError
from headrace.connectors.base import Delivery, RowsSink, unify_schemas, without_event_time
from headrace.formats.base import Format
from headrace.formats.json.format import encode_json_values
from headrace.formats.options import FormatOptions
from headrace.model.operator import Collector, OperatorContext

StdoutFormat = Literal["auto", "table", "json", "debezium_json", "raw_string", "raw_bytes"]

_NARROWEST = 8
_WIDEST = 60
_GAP = "  "


class StdoutSink(RowsSink):
    """Writes committed rows to the standard output of the driver, one write per epoch.

    Nothing is written before the epoch is committed. A commit that is retried in one process writes once;
    after a crash during the commit the next process may write the epoch again, because a terminal or a pipe
    cannot be read back. It runs at any parallelism; rows are written in the order of subtasks. When the
    reader closes the pipe the run is stopped (OutputClosedError).

    Args:
        options: an `Options` object, or each option by its name.

    Raises:
        ConfigurationError: an option is wrong.

    >>> import headrace as hr, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> pipeline = hr.Pipeline()
    >>> pipeline.source("memory", rows=[{"shop": "mill", "amount": 3}]).sink(hr.StdoutSink(format="json"))
    Stream(memory_1: shop TEXT, amount BIGINT)
    >>> result = run_in_process(pipeline, tempfile.mkdtemp())
    {"shop":"mill","amount":3}
    """

    deliveries = (
        Delivery(
            "at least once",
            "an epoch is printed by its commit; if a crash interrupts it, it is printed again",
        ),
    )

    class Options(FormatOptions):
        """The options of the stdout sink."""

        format: StdoutFormat = Field(  # type: ignore[assignment]
            "auto",
            description=(
                "`table`, `json` (lines), `debezium_json`, `raw_string`, `raw_bytes`, or `auto`: a table on "
                "a terminal, else lines of `json`, or of `debezium_json` if rows change."
            ),
        )
        with_timestamp: bool = Field(
            False, description="Whether to write the event time column `_timestamp` too."
        )

    options: Options

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether the format can express retractions."""
        return self.options.format in {"auto", "table", "debezium_json"}

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Buffer the batch, without its event time unless `with_timestamp` is set."""
        self._format(batch.schema).check(batch.schema)
        if not self.options.with_timestamp:
            batch = without_event_time(batch)
        if self.options.format in {"raw_string", "raw_bytes"}:
            # Columns that the format cannot write are refused here: the commit would fail in every later run.
            self._format(batch.schema).encode(batch.slice(0, 0))
        super().process_batch(batch, ctx, collector)

    def _format(self, schema: pa.Schema) -> Format:
        """Return the line format for these columns; `auto` and `table` become JSON."""
        options, columns = self.options, self.options.columns
        if columns is not None and self.options.with_timestamp and TIMESTAMP in schema.names:
            columns = columns.append(schema.field(TIMESTAMP))
        if options.format in {"auto", "table"}:
            lines = "debezium_json" if RETRACT in schema.names else "json"
            options = options.model_copy(update={"format": lines})
        return options.format_for(columns)

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Write the rows of the epoch in one write."""
        key = (ctx.task_info.job_id, ctx.task_info.operator_id)
        printer = _PRINTERS.setdefault(key, _Printer())
        batches, attempts = self.staged_rows(data, ctx)
        if not batches or attempts == printer.written:
            return
        out = sys.stdout
        if self.options.format == "table" or (self.options.format == "auto" and out.isatty()):
            text = printer.table([self._visible_columns(batch) for batch in batches])
        else:
            text = self._lines(batches)
        ctx.check_generation()
        printer.written = attempts
        _write(out, text)

    def _visible_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.options.columns is None:
            return batch
        return batch.select(
            [name for name in [*self.options.columns.names, RETRACT, TIMESTAMP] if name in batch.schema.names]
        )

    def _lines(self, batches: Sequence[pa.RecordBatch]) -> str:
        if any(RETRACT in batch.schema.names for batch in batches):
            # What happened to a row is told by all its changes of the epoch together.
            batches = [pa.Table.from_batches(unify_schemas(batches))]
        return b"".join(self._format(batch.schema).encode(batch) for batch in batches).decode(
            "utf-8", "replace"
        )


def _write(out: TextIO, text: str) -> None:
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()
    except BrokenPipeError:
        # What is left in Python's buffer would fail again, loudly, when the process ends.
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, out.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            pass
        raise OutputClosedError("the reader of the output has closed it") from None


class _Printer:
    """The state of a sink between epochs: the column widths and the last commit."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None
        self.widths: list[int] = []
        self.written: frozenset[str] = frozenset()

    def table(self, batches: Sequence[pa.RecordBatch]) -> str:
        """Return the rows as aligned lines, after a header if the columns are new."""
        lines: list[str] = []
        for batch in batches:
            cells = [_cells(column) for column in batch.columns]
            numeric = [_is_number(kind) for kind in batch.schema.types]
            fixed = [right or _is_time(kind) for right, kind in zip(numeric, batch.schema.types, strict=True)]
            widths = [max(map(_width, column), default=0) for column in cells]
            if self.schema is None or not self.schema.equals(batch.schema):
                names = [_printable(name) for name in batch.schema.names]
                self.widths = _fit(
                    [max(_width(name), width) for name, width in zip(names, widths, strict=True)], fixed
                )
                if self.schema is not None:
                    lines.append("")
                self.schema = batch.schema
                lines.append(self._line(names, numeric))
                lines.append(_GAP.join("-" * width for width in self.widths))
            # A number cut short would be another number: such columns grow instead.
            self.widths = [
                max(width, want) if keep else width
                for width, want, keep in zip(self.widths, widths, fixed, strict=True)
            ]
            lines.extend(self._line(row, numeric) for row in zip(*cells, strict=True))
        return "\n".join(lines) + "\n"

    def _line(self, row: Sequence[str], numeric: Sequence[bool]) -> str:
        padded = (
            _pad(text, width, right=right)
            for text, width, right in zip(row, self.widths, numeric, strict=True)
        )
        return _GAP.join(padded).rstrip()


_PRINTERS: dict[tuple[str, str], _Printer] = {}


def _cells(column: pa.Array) -> list[str]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["" if text is None else _printable(text) for text in column.to_pylist()]
    cells = []
    for text, valid in zip(
        encode_json_values(column).to_pylist(), column.is_valid().to_pylist(), strict=True
    ):
        cell = text.strip('"') if _is_number(kind) or _is_time(kind) else text
        if pa.types.is_timestamp(kind):
            cell = cell.replace("T", " ", 1)
        cells.append(_printable(cell) if valid else "")
    return cells


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind))


def _fit(widths: Sequence[int], fixed: Sequence[bool]) -> list[int]:
    """Return widths that fit the terminal: the widest strings are narrowed; numbers and times are not."""
    fitted = [width if keep else min(width, _WIDEST) for width, keep in zip(widths, fixed, strict=True)]
    fitted = [max(width, 1) for width in fitted]
    room = shutil.get_terminal_size((120, 24)).columns - len(_GAP) * (len(fitted) - 1)
    while sum(fitted) > room:
        widest = max(
            (index for index, keep in enumerate(fixed) if not keep and fitted[index] > _NARROWEST),
            key=lambda index: fitted[index],
            default=None,
        )
        if widest is None:
            break
        fitted[widest] -= 1
    return fitted


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(_columns(c) for c in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _pad(text: str, width: int, *, right: bool) -> str:
    own = _width(text)
    if own > width:
        visible, used = "", 0
        for char in text:
            if used + _columns(char) > width - 1:
                break
            visible, used = visible + char, used + _columns(char)
        text, own = visible + "…", used + 1
    space = " " * (width - own)
    return space + text if right else text + space
