"""The base of message sources: decode messages into rows, with metadata and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import BadLineError, ConfigurationError, InternalError, suggest
from headrace.base.options import Duration
from headrace.connectors.base import TIMESTAMP_TYPE, report_bad
from headrace.formats.base import Decoded, Format, plain_field, split_lines, too_long
from headrace.formats.json.debezium import count_rows
from headrace.formats.options import FormatOptions, ReadOptions, implied_columns
from headrace.model.operator import DEAD_LETTER, Collector, SourceContext

LAST_INSTANT = 2**63 - 1
_HEAD = 1024
"""The number of bytes of a message that is too long which its error shows."""


Bounded = Annotated[
    bool,
    Field(
        alias="source.bounded",
        description=(
            "End, for good, with the last message that existed when the pipeline first started: a later run "
            "reads nothing. For runs that each read what came since the last one, use `available_now`."
        ),
    ),
]
"""The option of sources of numbered messages that may end."""


class MessageOptions(ReadOptions, FormatOptions):
    """The options of message sources; the connector declares which metadata its messages have."""

    METADATA: ClassVar[Mapping[str, pa.DataType]] = {}
    """The metadata of messages, with types."""

    metadata: Mapping[str, str] = Field(default={}, description="Column → the metadata field that it holds.")
    idle_timeout: Duration | None = Field(
        None, description="After this long without messages the source no longer holds the watermark back."
    )

    @classmethod
    def metadata_type(cls, name: str) -> pa.DataType | None:
        """Return the type of a metadata field; None if messages have no such field."""
        return cls.METADATA.get(name)

    @model_validator(mode="after")
    def _knows_metadata(self) -> Self:
        for column, what in self.metadata.items():
            expected = self.metadata_type(what)
            if expected is None:
                hint = suggest(what, self.METADATA, listing="there are") or "there is none"
                raise ValueError(f"column `{column}`: a message has no metadata `{what}`; {hint}")
            if self.columns is not None and column in self.columns.names:
                kind = self.columns.field(column).type
                if plain_field(self.columns.field(column)).type != expected:
                    raise ValueError(
                        f"column `{column}`: the metadata `{what}` has the type {expected}, not {kind}"
                    )
        return self

    def format_for(self, schema: pa.Schema | None) -> Format:
        """Return the format of the messages for these columns without metadata columns."""
        if schema is not None:
            content = [field for field in schema if field.name not in self.metadata]
            schema = pa.schema(content) if content else None
        return super().format_for(schema)


def declared_columns(options: MessageOptions, connector: str) -> pa.Schema:
    """Return the declared columns, or those that the format implies."""
    columns = implied_columns(options) if options.columns is None else options.columns
    if columns is None:
        raise ConfigurationError(
            f"the {connector} source needs to know its columns",
            hint="declare them with the option `schema`",
        )
    return columns


@dataclass(frozen=True)
class Messages:
    """A batch of messages, in order."""

    values: Sequence[bytes | None]
    """The contents; None is a message without content, which has no row."""
    times: NDArray[np.int64]
    """Nanoseconds since 1970."""
    metadata: Callable[[str], Sequence[Any]]
    """Returns a metadata field of each message."""
    position: Callable[[int], str]
    """Returns the position of a message, such as `offset 5 of partition 3`."""
    offset: Callable[[int], int | None] = lambda _: None
    """Returns the offset of a message, of sources that number them."""
    partition: int | None = None
    """The partition of the messages, of sources that have partitions."""

    def select(self, indices: Sequence[int]) -> Messages:
        """Return only the messages at these indices."""
        return Messages(
            [self.values[index] for index in indices],
            self.times[indices],
            lambda name: [(self.metadata(name))[index] for index in indices],
            lambda index: self.position(indices[index]),
            lambda index: self.offset(indices[index]),
            self.partition,
        )


class MessageReader:
    """Decodes messages into rows: the columns of their content, their metadata and their times.

    A message that cannot be read ends the run with its position, is dropped and counted, or goes to the
    output `dead_letter`, as `bad_data` says.
    """

    def __init__(self, options: MessageOptions, *, connector: str, where: str) -> None:
        self._options, self._where = options, where
        self._columns = declared_columns(options, connector)
        self._content = any(name not in options.metadata for name in self._columns.names)
        self._raw = options.format in {"raw_string", "raw_bytes"}
        self._changes = options.format == "debezium_json"
        # Messages are cut into lines here, where it is known which line is of which message.
        unframed = options.model_copy(update={"framing": None, "framing_max_length": None})
        self._format = unframed.format_for(self._columns)

    def read(self, messages: Messages, ctx: SourceContext, collector: Collector) -> pa.Table:
        """Return the rows of messages, in order."""
        if None in messages.values:
            with_content = [index for index, value in enumerate(messages.values) if value is not None]
            ctx.metrics.add("tombstones", len(messages.values) - len(with_content))
            messages = messages.select(with_content)
        messages = self._with_metadata(self._within_limit(messages, ctx, collector), ctx, collector)
        lines, owners = self._lines([value for value in messages.values if value is not None])
        try:
            decoded = self._decode(lines)
        except BadLineError as error:
            raise self._placed(error, messages, owners) from None
        if decoded.bad:
            keep = self._options.bad_data == DEAD_LETTER
            reported = decoded.bad if keep else decoded.bad[:1]
            placed = [self._placed(error, messages, owners) for error in reported]
            report_bad(ctx, collector, [*placed, *decoded.bad[len(reported) :]], keep=keep)
        counts = self._rows_of_lines(lines, decoded)
        owner_of_row = owners if counts is None else np.repeat(owners, counts)
        if len(owner_of_row) != decoded.rows.num_rows and self._content:
            raise InternalError(f"{len(owner_of_row)} rows were expected, {decoded.rows.num_rows} were read")
        return self._assemble(decoded.rows, messages, owner_of_row)

    def _within_limit(self, messages: Messages, ctx: SourceContext, collector: Collector) -> Messages:
        """Return the messages of at most `max_record_bytes`; the others are reported as bad."""
        limit = self._options.max_record_bytes
        bad = [
            index for index, value in enumerate(messages.values) if value is not None and len(value) > limit
        ]
        if not bad:
            return messages
        errors = []
        for index in bad:
            value = messages.values[index] or b""
            error = too_long(index, value[:_HEAD], size=len(value), limit=limit, where=self._where)
            errors.append(self._placed(error, messages, np.arange(len(messages.values))))
        if self._options.bad_data == "fail":
            raise errors[0]
        report_bad(ctx, collector, errors, keep=self._options.bad_data == DEAD_LETTER)
        return messages.select([index for index in range(len(messages.values)) if index not in set(bad)])

    def _with_metadata(self, messages: Messages, ctx: SourceContext, collector: Collector) -> Messages:
        """Return the messages with all required metadata; the others are reported as bad."""
        bad: dict[int, str] = {}
        for field in self._columns:
            what = self._options.metadata.get(field.name)
            if what is not None and not field.nullable:
                values = messages.metadata(what)
                bad |= {index: field.name for index, value in enumerate(values) if value is None}
        if not bad:
            return messages
        errors = [self._lacking(messages, index, bad[index]) for index in sorted(bad)]
        if self._options.bad_data == "fail":
            raise errors[0]
        report_bad(ctx, collector, errors, keep=self._options.bad_data == DEAD_LETTER)
        return messages.select([index for index in range(len(messages.values)) if index not in bad])

    def _lacking(self, messages: Messages, index: int, column: str) -> BadLineError:
        what, position = self._options.metadata[column], messages.position(index)
        return bad_message(
            messages,
            index,
            f"the message at {position} cannot be read, column `{column}`: it has no `{what}`, "
            "and the column is NOT NULL",
            column=column,
            hint="declare the column without NOT NULL",
            fault="missing-value",
            where=self._where,
        )

    def _lines(self, values: Sequence[bytes]) -> tuple[Sequence[bytes], NDArray[np.int64]]:
        """Return the lines with one row each, and the index of the message of each."""
        if self._options.framing is None:
            return values, np.arange(len(values))
        longest = self._options.framing_max_length
        parts = [[line[:longest] for _, line in split_lines(value)] for value in values]
        owners = np.repeat(np.arange(len(values)), [len(part) for part in parts])
        return [line for part in parts for line in part], owners

    def _decode(self, lines: Sequence[bytes]) -> Decoded:
        if not self._content:
            return Decoded(pa.table({}))
        return self._format.decode(lines, first_line=0, where=self._where)

    def _rows_of_lines(self, lines: Sequence[bytes], decoded: Decoded) -> NDArray[np.int64] | None:
        """Return the number of rows of each line; None if each has one."""
        if decoded.counts is not None:
            return decoded.counts
        if self._raw and not decoded.bad:
            return None
        if self._content and not self._changes and decoded.rows.num_rows == len(lines):
            return None
        filled = np.fromiter((self._raw or bool(line.strip()) for line in lines), np.int64, len(lines))
        filled[[error.line for error in decoded.bad]] = 0
        if self._changes and filled.any():
            good = [lines[index] for index in np.flatnonzero(filled).tolist()]
            filled[filled == 1] = count_rows(good)
        return filled

    def _assemble(self, content: pa.Table, messages: Messages, owner_of_row: NDArray[np.int64]) -> pa.Table:
        count = len(messages.values)
        is_one_to_one = len(owner_of_row) == count and bool((owner_of_row == np.arange(count)).all())
        rows_of = None if is_one_to_one else pa.array(owner_of_row)

        def column(values: Any, kind: pa.DataType | None) -> pa.Array:
            array = pa.array(values, kind)
            return array if rows_of is None else array.take(rows_of)

        arrays = []
        for field in self._columns:
            what = self._options.metadata.get(field.name)
            if what is None:
                arrays.append(content.column(field.name))
            else:
                arrays.append(column(messages.metadata(what), self._options.metadata_type(what)))
        fields = [plain_field(field) for field in self._columns]
        if self._changes:
            fields.append(pa.field(RETRACT, pa.bool_()))
            arrays.append(content.column(RETRACT))
        fields.append(pa.field(TIMESTAMP, TIMESTAMP_TYPE))
        instants = np.clip(messages.times, 0, LAST_INSTANT)
        arrays.append(column(instants, pa.int64()).view(TIMESTAMP_TYPE))
        return pa.table(arrays, schema=pa.schema(fields))

    def _placed(self, error: BadLineError, messages: Messages, owners: NDArray[np.int64]) -> BadLineError:
        """Return the error with the position of the message instead of the line."""
        owner = int(owners[error.line])
        position = messages.position(owner)
        return BadLineError(
            error.message.replace(f"line {error.line}", f"the message at {position}", 1),
            line=error.line,
            content=error.content,
            column=error.column,
            hint=error.hint,
            where=self._where,
            record=error.record,
            position=position,
            offset=messages.offset(owner),
            partition=messages.partition,
            fault=error.fault,
        )


def bad_message(
    messages: Messages,
    index: int,
    message: str,
    *,
    column: str,
    hint: str,
    fault: str,
    where: str | None,
) -> BadLineError:
    """The error of a message that cannot be read because of its metadata or its key."""
    record = messages.values[index] or b""
    return BadLineError(
        message,
        line=index,
        content=record.decode("utf-8", "replace"),
        column=column,
        where=where,
        hint=hint,
        record=record,
        position=messages.position(index),
        offset=messages.offset(index),
        partition=messages.partition,
        fault=fault,
    )
