"""The `single_file` source: read the lines of one local file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pydantic import Field

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, HeadraceError
from headrace.base.options import Duration
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import (
    Connector,
    Delivery,
    TimeUnit,
    check_column,
    report_bad,
    wall_clock,
    with_event_time,
)
from headrace.connectors.filesystem.content import changed_file
from headrace.connectors.filesystem.lines import (
    LongLine,
    Mark,
    decode_block,
    read_blocks,
    read_sample,
    scan_rows,
    share_rows,
)
from headrace.connectors.single_file.path import absolute_path, suggest_path
from headrace.formats.base import Format
from headrace.formats.options import Columns, LineFormatOptions, ReadOptions, check_readable, infer_from
from headrace.formats.types import format_type, parse_type
from headrace.model.operator import (
    DEAD_LETTER,
    Collector,
    Finish,
    Limit,
    Offset,
    SourceContext,
    SourceOperator,
    Split,
)
from headrace.storage.identity import content_identity

LANE = "file"
BATCH_ROWS = 65_536
_WORTH_SPLITTING = 1024 * 1024
_SAMPLE_LINES = 1000
_ALL_ROWS = 2**62

_log = logging.getLogger("headrace.single_file")


class SingleFileSource(Connector, SourceOperator):
    r"""Reads the lines of one local file, each line once; then it ends.

    The size of the file and the types of its columns are fixed when the pipeline first starts, and are part
    of the offset with the byte and the line: a pipeline resumes with the next line, and lines that are
    appended later are not read, unless each run is one with `available_now`: then each reads the complete
    lines that were appended since the last one. A file that is replaced by another before it is read to its
    end is an error. The tasks of an epoch share its lines; every worker must see the file under the same
    path. Empty lines are skipped, unless the format is a raw one; a line that does not fit ends the run with
    its number, its content and, if known, its column, or is dropped and counted in the metric `bad_rows`.

    Args:
        options: an `Options` object, or each option by its name.

    Raises:
        ConfigurationError: an option is wrong.

    >>> import headrace as hr, pathlib, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> path = pathlib.Path(tempfile.mkdtemp(), "sales.csv")
    >>> path.write_text("shop,amount\nmill,3\n")
    19
    >>> pipeline = hr.Pipeline()
    >>> sales = pipeline.source(hr.SingleFileSource(path=str(path), format="csv"), id="sales")
    >>> sales.sink("memory", name="rows")
    Stream(sales)
    >>> run_in_process(pipeline, tempfile.mkdtemp()).rows["rows"].select(["shop", "amount"]).to_pylist()
    [{'shop': 'mill', 'amount': 3}]
    """

    deliveries = (
        Delivery(
            "exactly once", "the position in the file is in the checkpoint, and any part can be read again"
        ),
    )

    class Options(ReadOptions, LineFormatOptions):
        """The options of the single_file source."""

        path: str = Field(min_length=1, description="The file to read.")
        columns: Columns | None = Field(
            None,
            alias="schema",
            description=(
                "Column → type, such as int64, double, string, timestamp; other columns are ignored. "
                "Without it, types are inferred from the first 1000 lines; strings stay strings."
            ),
        )
        timestamp_column: str | None = Field(
            None,
            description="The column with the event time: ISO 8601 strings, or numbers in timestamp_unit.",
        )
        timestamp_unit: TimeUnit = Field(
            "ns", description="The unit of event times that are numbers: s, ms, us or ns."
        )
        wait_for_control: bool = Field(
            default=False, description="Accepted for compatibility; it has no effect."
        )
        idle_timeout: Duration | None = Field(
            None, description="After this long without rows the file no longer holds the watermark back."
        )

    options: Options
    lag_unit = "bytes"

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout
        self._path = absolute_path(self.options.path)
        self._row_ends = self.options.format_for(None).row_ends
        self._marks: dict[int, Sequence[Mark]] = {}
        """By byte: line numbers that `latest_offset` recorded, for `splits`."""
        self._is_limited = False

    def validate(self) -> None:
        """Raise an error for a file that cannot be read and a timestamp column that is not in the schema."""
        _check_readable(self._path)
        check_readable(self.options)
        if self.options.columns is not None and self.options.timestamp_column is not None:
            check_column(
                self.options.timestamp_column,
                self.options.columns.names,
                what="single_file, option `timestamp_column`",
            )

    def claims(self) -> Sequence[str]:
        """Return the file: a sink would truncate it while it is read."""
        return [f"the file {self._path.resolve()}"]

    def initial_offset(self, *, time: float) -> Offset:
        """Return the beginning of the file; its size and its columns are fixed here."""
        self.validate()
        size = self._path.stat().st_size
        columns = None
        if self.options.columns is None:
            columns = {field.name: format_type(field.type) for field in self._infer(size)}
        with self._path.open("rb") as file:
            identity = content_identity(file, size)
        position = {"byte": 0, "line": 1, "size": size, "time": wall_clock(time), "schema": columns}
        return {LANE: {**position, "identity": identity}}

    def find_columns(self) -> pa.Schema:
        """Return the columns of the schema, or those inferred from the first lines."""
        self.validate()
        return self._infer(self._path.stat().st_size)

    def _infer(self, size: int) -> pa.Schema:
        with self._path.open("rb") as file:
            end = scan_rows(file, 0, size, rows=_SAMPLE_LINES, row_ends=self._row_ends).end
            file.seek(0)
            sample = read_sample(file, end, limit=self.options.max_record_bytes)
            columns = infer_from(self.options, sample, where=str(self._path))
        column = self.options.timestamp_column
        if column is not None and len(columns):
            check_column(column, columns.names, what="single_file, option `timestamp_column`")
        return columns

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Read the complete lines that are there now; one without its newline is left for the next run."""
        position = start[LANE]
        self._is_limited = True
        with _open(self._path, position["size"], position) as file:
            size = self._complete_bytes(file, position["byte"], os.fstat(file.fileno()).st_size)
            return {LANE: {**position, "size": size, "identity": content_identity(file, size)}}

    def _complete_bytes(self, file: BinaryIO, byte: int, size: int) -> int:
        """Return where the last complete row of the file ends."""
        file.seek(max(0, size - 1))
        if size <= byte or file.read(1) == b"\n":
            return size
        file.seek(byte)
        rows = scan_rows(file, byte, size, rows=_ALL_ROWS, row_ends=self._row_ends).rows
        file.seek(byte)
        end = byte
        if rows > 1:
            end = scan_rows(file, byte, size, rows=rows - 1, row_ends=self._row_ends).end
        _log.warning("the last line of `%s` has no newline yet: it is left for the next run", self._path)
        return end

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the position `limit.rows` lines further, or the end of the file."""
        position = start[LANE]
        if position["byte"] >= position["size"] or limit.rows <= 0:
            return start
        with _open(self._path, position["size"], position) as file:
            file.seek(position["byte"])
            byte, size = position["byte"], position["size"]
            scanned = scan_rows(file, byte, size, rows=limit.rows, row_ends=self._row_ends)
        self._marks = {byte: scanned.marks}
        time = max(position["time"], wall_clock(limit.time))
        return {
            LANE: {**position, "byte": scanned.end, "line": position["line"] + scanned.lines, "time": time}
        }

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many bytes of the file are behind the offset."""
        return {LANE: offset[LANE]["size"] - offset[LANE]["byte"]}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return contiguous splits of complete lines; a small range is one split."""
        first, last, line = start[LANE]["byte"], end[LANE]["byte"], start[LANE]["line"]
        if first == last:
            return []
        common = {**end[LANE], "final": self.is_finished(end)}
        shares = min(parallelism, max(1, (last - first) // _WORTH_SPLITTING))
        targets = [begin for begin, _ in even_ranges(first, last, shares)[1:]]
        marks = self._marks.pop(first, ())
        with _open(self._path, last, end[LANE]) as file:
            cut = share_rows(
                file, first, last, line=line, targets=targets, row_ends=self._row_ends, marks=marks
            )
            return [
                Split(LANE, {**common, "byte": share.begin, "end": share.end, "line": share.line})
                for share in cut
            ]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the lines of one split."""
        detail = ctx.split.detail
        schema = self.options.columns
        if schema is None:
            schema = pa.schema([pa.field(name, parse_type(text)) for name, text in detail["schema"].items()])
        lines = self.options.format_for(schema)
        with _open(self._path, detail["end"], detail) as file:
            if detail["byte"] and lines.head_lines:
                end = scan_rows(file, 0, None, rows=lines.head_lines, row_ends=self._row_ends).end
                file.seek(0)
                lines.read_head(file.read(end).rstrip(b"\r\n"), str(self._path))
            file.seek(detail["byte"])
            first, last, number = detail["byte"], detail["end"], detail["line"]
            where = str(self._path)
            limit, drop_bad = self.options.max_record_bytes, self.options.bad_data != "fail"
            blocks = read_blocks(
                file, first, last, line=number, where=where, limit=limit, row_ends=self._row_ends
            )
            for line, block in blocks:
                decoded = decode_block(lines, block, line=line, where=where, limit=limit, drop_bad=drop_bad)
                report_bad(ctx, collector, decoded.bad, keep=self.options.bad_data == DEAD_LETTER)
                if decoded.rows.num_rows and not isinstance(block, LongLine):
                    rows = self._stamp(decoded.rows, detail["time"], lines, block, line)
                    for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
                        collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _stamp(self, rows: pa.Table, time: int, lines: Format, block: bytes, line: int) -> pa.Table:
        source, unit = self.options.timestamp_column, self.options.timestamp_unit
        try:
            return with_event_time(rows, time=time, column=source, unit=unit)
        except HeadraceError:
            for number, text in lines.split_rows(block, line):
                try:
                    row = lines.decode(text, first_line=number, where=str(self._path)).rows
                    with_event_time(row, time=time, column=source, unit=unit)
                except HeadraceError as error:
                    content = text.decode("utf-8", "replace").strip()
                    raise BadLineError(
                        f"line {number} has no event time in column `{source or TIMESTAMP}`: {content}",
                        line=number,
                        content=content,
                        column=source or TIMESTAMP,
                        where=str(self._path),
                        hint=error.hint,
                    ) from None
            raise

    def is_finished(self, offset: Offset) -> bool:
        """Whether the file is read to the end it had at the first start; never with `available_now`."""
        return not self._is_limited and bool(offset[LANE]["byte"] >= offset[LANE]["size"])


def _check_readable(path: Path) -> None:
    if path.is_dir():
        raise ConfigurationError(f"`{path}` is a directory, not a file")
    if not path.exists():
        raise ConfigurationError(f"there is no file `{path}`", hint=suggest_path(path))
    if not os.access(path, os.R_OK):
        raise ConfigurationError(f"`{path}` may not be read", hint="check its permissions")


def _open(path: Path, size: int, position: Mapping[str, Any]) -> BinaryIO:
    """Open the file; raises an error if it is shorter than planned, or another one than at the first start.

    Positions of earlier versions do not know which file it was.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ExternalError(f"`{path}` cannot be read: {error.strerror}", where="single_file") from None
    if os.fstat(file.fileno()).st_size < size:
        file.close()
        raise ExternalError(
            f"`{path}` has become shorter while it was read: {size} bytes were there",
            hint="put the file back, or start the pipeline anew with another state directory",
            where="single_file",
        )
    if "identity" in position:
        if content_identity(file, position["size"]) != position["identity"]:
            file.close()
            raise changed_file(str(path), where="single_file")
        file.seek(0)
    return file
