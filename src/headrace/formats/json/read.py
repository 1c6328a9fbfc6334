"""Read JSON objects into rows of declared types, without loss: only floats go through a float.

Lines of one layout are read by `layouts`, others are parsed by Arrow into the types that its parser supports;
both are then converted by column. Lines that Arrow refuses are read one by one: what is only written
differently, such as a number in quotes, is rewritten and read; the rest is bad.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError
from headrace.formats._shared.refused import TooManyRefusedError, errors_of, read_accepted
from headrace.formats._shared.spans import Spans
from headrace.formats.base import (
    Decoded,
    LineError,
    Path,
    is_binary,
    is_json,
    is_list,
    missing_value,
    plain_field,
    split_lines,
)
from headrace.formats.intervals import parse_interval
from headrace.formats.json.layouts import LineLayouts, read_times
from headrace.formats.json.rewrite import READING, JsonRewriter, Reading, decode_base64, decode_decimal

ROW = {b"headrace.row": b"true"}
"""The metadata of struct fields that hold a row of the table: they all have the same form."""

_PIECE = 256
_SNIFFED = 16
_OTHERS = 8
"""At most one in this many lines is read singly before all are."""


class JsonReader:
    """Reads JSON objects whose members are the fields of `schema`.

    Members that are not in the schema are ignored, missing ones are null, and a null where the field is not
    nullable makes the line bad. Every field is returned nullable and without metadata. `finish` converts the
    parsed objects to rows; it may raise a LineError.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        reading: Reading = READING,
        drop_bad: bool = False,
        finish: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        self._fields = list(schema)
        self._reading = reading
        self._drop_bad = drop_bad
        self._finish = finish
        self._layouts: dict[frozenset[Path], LineLayouts] = {}
        self._plain = pa.schema([plain_field(field) for field in self._fields])
        wire = self._wired(frozenset()).schema
        self._ambiguous = frozenset(path for field in self._fields for path in self._ambiguities(field, ()))
        self._decimals = frozenset(path for path, kind in self._leaves() if pa.types.is_decimal(kind))
        self._has_json = any(_contains_json(field) for field in self._fields)
        self.empty = self._done(wire.empty_table())

    @functools.cached_property
    def _rewriter(self) -> JsonRewriter:
        return JsonRewriter(self._fields, reading=self._reading)

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str) -> Decoded:
        """Decode all lines that are not empty; bad lines raise a BadLineError, or are dropped."""
        if not isinstance(data, bytes):
            joined = b"\n".join(data)
            if joined.count(b"\n") >= len(data):
                # White space between the tokens is all that a newline inside a JSON value can be.
                joined = b"\n".join(message.replace(b"\n", b" ") for message in data)
            data = joined
        if not data or data.isspace():
            return Decoded(self.empty)
        rows, bad = [], []
        for number, line, outcome in self._outcomes(data, first_line):
            if isinstance(outcome, LineError):
                error = outcome.at(number, line, where)
                if not self._drop_bad:
                    raise error
                bad.append(error)
            else:
                rows.append(outcome)
        return Decoded(pa.concat_tables(rows) if rows else self.empty, bad)

    def read(self, objects: Sequence[bytes]) -> tuple[pa.Table, dict[int, LineError]]:
        """Read objects without newlines; return the rows, and the errors of bad ones by index."""
        rows, bad = [self.empty], {}
        for number, _, outcome in self._outcomes(b"\n".join(objects), 0) if objects else ():
            if isinstance(outcome, LineError):
                bad[number] = outcome
            else:
                rows.append(outcome)
        return pa.concat_tables(rows), bad

    def _outcomes(self, data: bytes, first_line: int) -> Iterator[tuple[int, bytes, pa.Table | LineError]]:
        """Yield rows, in order, and the errors of bad lines, with their number and the line."""
        if not self._has_json:
            try:
                rows, bad = self._read_most(data, first_line)
            except ValueError:
                pass
            else:
                yield first_line, b"", rows
                yield from bad
                return
        lines = [(number, line) for number, line in split_lines(data, first_line) if line.strip()]
        for begin in range(0, len(lines), _PIECE):
            piece = lines[begin : begin + _PIECE]
            if not self._has_json:
                with contextlib.suppress(ValueError):
                    yield (
                        *piece[0],
                        self._done(self._read(b"\n".join(line for _, line in piece), len(piece))),
                    )
                    continue
            plain, errors = self._exact([line for _, line in piece])
            rows, unfinished = self._finish_accepted(plain)
            left = [index for index in range(len(piece)) if index not in errors]
            errors |= {left[index]: error for index, error in unfinished.items()}
            yield *piece[0], rows
            yield from ((*piece[index], errors[index]) for index in sorted(errors))

    def _read_most(self, data: bytes, first_line: int) -> tuple[pa.Table, list[tuple[int, bytes, LineError]]]:
        """Read all lines together but a few, which are read singly; a ValueError if these are too many.

        Returns the rows, and the errors of bad lines with their number and the line.
        """
        text, invalid = _without_invalid(data)
        wire, unread = self._read_wire(text)
        wrong = _NONE
        try:
            plain = self._converted(wire)
        except ValueError:
            wrong = self._unfit(wire)
            plain = self._converted(_without(wire, wrong))
        if not (len(invalid) or len(unread) or len(wrong)):
            with contextlib.suppress(ValueError):
                return self._finished(plain), []
        lines = _filled_lines(data)
        places = np.delete(np.arange(len(lines)), invalid)
        refused, places = np.append(invalid, places[unread]), np.delete(places, unread)
        refused, places = np.append(refused, places[wrong]), np.delete(places, wrong)
        if len(refused) * _OTHERS > len(lines):
            raise TooManyRefusedError
        refused = np.sort(refused)
        singles, bad = self._exact([lines[index] for index in refused.tolist()])
        if singles.num_rows:
            places = np.append(places, np.delete(refused, list(bad)))
            order = np.argsort(places, kind="stable")
            plain, places = pa.concat_tables([plain, singles]).take(pa.array(order)), places[order]
        rows, unfinished = self._finish_accepted(plain)
        errors = {int(refused[index]): error for index, error in bad.items()}
        errors |= {int(places[index]): error for index, error in unfinished.items()}
        numbers = lines.lines(first_line) if errors else ()
        return rows, [(int(numbers[index]), lines[index], errors[index]) for index in sorted(errors)]

    def _unfit(self, wire: pa.Table) -> NDArray[np.int64]:
        """Return the rows that cannot be converted."""
        missing = np.zeros(wire.num_rows, np.bool_)
        for column, field in zip(wire.columns, self._fields, strict=True):
            missing |= _is_missing(column.combine_chunks(), field)
        present = np.flatnonzero(~missing)
        rest = _without(wire, np.flatnonzero(missing)) if missing.any() else wire
        unfit = np.zeros(rest.num_rows, np.bool_)
        for column, field in zip(rest.columns, self._fields, strict=True):
            array = column.combine_chunks()
            with contextlib.suppress(ValueError):
                self._convert(array, field, (field.name,))
                continue
            _, refused = read_accepted(
                len(array),
                lambda begin, end, array=array, field=field: self._convert(  # type: ignore[misc]
                    array[begin:end], field, (field.name,)
                ),
            )
            unfit[refused] = True
        missing[present[unfit]] = True
        return np.flatnonzero(missing)

    def _finish_accepted(self, plain: pa.Table) -> tuple[pa.Table, dict[int, LineError]]:
        """Finish rows; return those that can be, and the errors of the others by index."""
        with contextlib.suppress(ValueError):
            return self._finished(plain), {}
        errors = errors_of(plain.num_rows, lambda begin, end: self._finished(plain.slice(begin, end - begin)))
        bad = {
            index: error if isinstance(error, LineError) else LineError(_tidy(error))
            for index, error in errors.items()
        }
        return self._finished(_without(plain, list(bad))), bad

    def _exact(self, lines: Sequence[bytes]) -> tuple[pa.Table, dict[int, LineError]]:
        """Rewrite lines and read them, not finished; return the rows, and the errors of bad ones by index."""
        normals: dict[int, bytes] = {}
        bad: dict[int, LineError] = {}
        for index, line in enumerate(lines):
            try:
                normals[index] = self._rewriter.normal(line)
            except LineError as error:
                bad[index] = error
        with contextlib.suppress(ValueError):
            return self._read_normal(normals.values()), bad
        for index, normal in list(normals.items()):
            if (path := _surrogate_path(normal)) is not None:
                bad[index] = LineError("The surrogate pair in string is invalid.", path=path)
                del normals[index]
        for field in self._fields:
            if not normals:
                break
            indices = list(normals)
            for position, fault in self._faults(list(normals.values()), field).items():
                bad[indices[position]] = LineError(_tidy(fault), path=(field.name,))
                del normals[indices[position]]
        return self._read_normal(normals.values()), bad

    def _faults(self, normals: Sequence[bytes], field: pa.Field) -> dict[int, ValueError]:
        """Return the errors of rewritten lines whose value of a field cannot be read, by index."""
        schema = pa.schema([self._wire(field, (), self._decimals)])
        kind, is_time = schema.types[0], pa.types.is_timestamp(schema.types[0])

        def read(begin: int, end: int) -> None:
            column = _parse(b"\n".join(normals[begin:end]), schema).column(0)
            self._convert(column, field, (field.name,))

        with contextlib.suppress(ValueError):
            read(0, len(normals))
            return {}
        if not is_time:
            return errors_of(len(normals), read)
        # The parser stops at the first that is wrong: as strings all of them are parsed together.
        strings = pa.schema([(field.name, pa.string())])
        texts = _parse(b"\n".join(normals), strings).column(0).combine_chunks()
        return {
            index: ValueError(f"Failed to convert JSON to {kind}, couldn't parse:{texts[index]}")
            for index in errors_of(len(texts), lambda begin, end: read_times(texts[begin:end], kind))
        }

    # ------------------------------------------------------------------------------- Arrow's parser

    def _read(self, data: bytes, rows: int) -> pa.Table:
        """Parse lines, of which so many are not blank."""
        if not data.isascii():
            data.decode()  # Arrow does not look whether texts are UTF-8
        return _parse_rows(
            data, self._wired(self._sniff(data) if self._ambiguous else frozenset()).schema, rows
        )

    def _read_wire(self, data: bytes) -> tuple[pa.Table, NDArray[np.int64]]:
        """Read lines in UTF-8; return the rows, and which lines could not be read, without blank ones."""
        layouts = self._wired(self._sniff(data) if self._ambiguous else frozenset())
        schema = layouts.schema
        result = layouts.read(data, parse=lambda lines: _parse_rows(b"\n".join(lines), schema, len(lines)))
        if result is not None:
            return result
        lines = _filled_lines(data)
        if not len(lines):
            return schema.empty_table(), _NONE
        try:
            return _parse_rows(data, schema, len(lines)), _NONE
        except ValueError:
            tables, refused = read_accepted(
                len(lines),
                lambda begin, end: _parse_rows(
                    data[lines.begins[begin] : lines.ends[end - 1]], schema, end - begin
                ),
            )
        return pa.concat_tables([schema.empty_table(), *tables]), np.array(refused, np.int64)

    def _read_normal(self, lines: Collection[bytes]) -> pa.Table:
        """Read rewritten lines, not finished."""
        if not lines:
            return self._plain.empty_table()
        return self._converted(_parse(b"\n".join(lines), self._wired(self._decimals).schema))

    def _done(self, wire: pa.Table) -> pa.Table:
        return self._finished(self._converted(wire))

    def _converted(self, wire: pa.Table) -> pa.Table:
        if not self._fields:
            return wire
        return pa.table(
            [
                self._convert(column, field, (field.name,))
                for column, field in zip(wire.columns, self._fields, strict=True)
            ],
            schema=self._plain,
        )

    def _finished(self, plain: pa.Table) -> pa.Table:
        return plain if self._finish is None else self._finish(plain)

    def _sniff(self, data: bytes) -> frozenset[Path]:
        """Return which of the columns that may be numbers or strings are numbers in the first lines."""
        is_number: dict[Path, bool] = {}
        for line in islice((line for line in io.BytesIO(data) if line.strip()), _SNIFFED):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict):
                continue
            for field in self._fields:
                self._look(message.get(field.name), field, (), is_number)
            if len(is_number) == len(self._ambiguous):
                break
        return frozenset(path for path, number in is_number.items() if number)

    def _look(self, value: Any, field: pa.Field, path: Path, is_number: dict[Path, bool]) -> None:
        path = _step(path, field)
        if isinstance(value, dict) and pa.types.is_struct(field.type):
            for child in field.type:
                self._look(value.get(child.name), child, path, is_number)
        elif isinstance(value, list) and is_list(field.type):
            for item in value[:1]:
                self._look(item, field.type.value_field, path, is_number)
        elif path in self._ambiguous and value is not None:
            is_number.setdefault(path, not isinstance(value, str))

    def _wired(self, numbers: frozenset[Path]) -> LineLayouts:
        """Return the columns as Arrow's parser reads them, and the layouts of such lines."""
        if numbers not in self._layouts:
            fields = [self._wire(field, (), numbers) for field in self._fields]
            self._layouts[numbers] = LineLayouts(pa.schema(fields))
        return self._layouts[numbers]

    def _wire(self, field: pa.Field, path: Path, numbers: frozenset[Path]) -> pa.Field:
        """Return the field as Arrow's parser reads it."""
        path, kind = _step(path, field), field.type
        if is_json(field):
            kind = pa.string()
        elif pa.types.is_struct(kind):
            kind = pa.struct([self._wire(child, path, numbers) for child in kind])
        elif is_list(kind):
            kind = pa.list_(self._wire(kind.value_field, path, numbers))
        elif path in numbers:
            kind = pa.int64() if pa.types.is_timestamp(kind) else kind
        elif self._is_text(kind):
            kind = pa.string()
        elif pa.types.is_duration(kind):
            kind = pa.int64()
        elif pa.types.is_float16(kind):
            kind = pa.float32()
        elif not _is_parsed(kind):
            raise ConfigurationError(
                f"column `{'.'.join(path)}` of type {kind} cannot be read from JSON",
                hint="declare it as TEXT or JSON",
            )
        return pa.field(field.name, kind)

    def _is_text(self, kind: pa.DataType) -> bool:
        return bool(
            is_binary(kind)
            or pa.types.is_interval(kind)
            or pa.types.is_date(kind)
            or pa.types.is_time(kind)
            or kind in (pa.large_string(), pa.string_view())
            or (self._reading.decimal_bytes and pa.types.is_decimal(kind))
        )

    def _ambiguities(self, field: pa.Field, path: Path) -> Iterator[Path]:
        for leaf, kind in _walk(field, path):
            clock = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)
            if clock or (self._reading.decimal_bytes and pa.types.is_decimal(kind)):
                yield leaf

    def _leaves(self) -> Iterator[tuple[Path, pa.DataType]]:
        for field in self._fields:
            yield from _walk(field, ())

    # --------------------------------------------------------------------- from there to the types asked for

    def _convert(self, column: Any, field: pa.Field, path: Path) -> pa.Array:
        array = column
        if isinstance(column, pa.ChunkedArray):  # which copies even a single one to combine it
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if array.null_count and not field.nullable:
            raise missing_value(path)
        kind = field.type
        if is_json(field):
            return array.cast(pa.string())
        if pa.types.is_struct(kind):
            return self._convert_struct(array, field, path)
        if is_list(kind):
            item = kind.value_field
            values = self._convert(array.values, item, path)
            lists = pa.ListArray.from_arrays(
                array.offsets, values, type=pa.list_(plain_field(item)), mask=array.is_null()
            )
            return lists.cast(plain_field(field).type)
        if array.type == kind:
            if pa.types.is_decimal(kind):
                array.validate(full=True)  # the parser lets numbers pass that have too many digits
            return array
        return self._convert_leaf(array, kind)

    def _convert_struct(self, array: pa.Array, field: pa.Field, path: Path) -> pa.Array:
        valid = array.is_valid() if array.null_count else None
        children = []
        for index, child in enumerate(field.type):
            values, below = array.field(index), (*path, child.name)
            if valid is not None and not child.nullable:
                # Below a null struct nothing is missing: only rows that have one are looked at.
                self._convert(values.filter(valid), child, below)
            children.append(
                self._convert(values, child if valid is None else child.with_nullable(True), below)
            )
        fields = [plain_field(child) for child in field.type]
        if not fields:
            return array
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())

    def _convert_leaf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_time(kind):
            instants = pc.binary_join_element_wise("1970-01-01T", array, "").cast(pa.timestamp("ns"))
            nanoseconds = instants.cast(pa.int64()).cast(pa.time64("ns"))
            return nanoseconds.cast(kind, safe=False)
        if pa.types.is_date64(kind):
            return array.cast(pa.date32()).cast(kind)
        if is_binary(kind):
            return pa.array([decode_base64(text) for text in array.to_pylist()], kind)
        if pa.types.is_interval(kind):
            texts = array.to_pylist()
            return pa.array([None if text is None else parse_interval(text) for text in texts], kind)
        if pa.types.is_decimal(kind):
            return pa.array([decode_decimal(text, kind) for text in array.to_pylist()], kind)
        if pa.types.is_timestamp(kind) and self._reading.milliseconds:
            return array.cast(pa.timestamp("ms")).cast(kind, safe=kind.unit != "s")
        return array.cast(kind)


_NONE = np.zeros(0, np.int64)
_NULL_LINE = re.compile(rb"(?:\A|\n)\s*null")


def _filled_lines(data: bytes) -> Spans:
    """Return the lines that are not blank."""
    lines = Spans.of_rows(data)
    return lines.take(lines.not_blank())


def _without_invalid(data: bytes) -> tuple[bytes, NDArray[np.int64]]:
    """Return the bytes without lines that are not UTF-8, and which lines these are, without blank ones."""
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError:
        lines = _filled_lines(data)
    else:
        return data, _NONE
    invalid = lines.not_utf8()
    if len(invalid) * _OTHERS > len(lines):
        raise TooManyRefusedError
    return lines.take(np.delete(np.arange(len(lines)), invalid)).joined(), invalid


def _is_missing(array: pa.Array, field: pa.Field) -> NDArray[np.bool_]:
    """Return which rows have no value for a field that is NOT NULL, in structs at every depth."""
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    missing = ~valid if not field.nullable else np.zeros(len(array), np.bool_)
    if pa.types.is_struct(field.type) and not is_json(field):
        for index, child in enumerate(field.type):
            missing |= valid & _is_missing(array.field(index), child)
    return missing


def _without(table: pa.Table, rows: Sequence[int] | NDArray[np.int64]) -> pa.Table:
    return table.take(pa.array(np.delete(np.arange(table.num_rows), rows)))


def _step(path: Path, field: pa.Field) -> Path:
    if field.metadata and b"headrace.row" in field.metadata:
        return ()
    return (*path, field.name)


def _walk(field: pa.Field, path: Path) -> Iterator[tuple[Path, pa.DataType]]:
    path = _step(path, field)
    if is_json(field):
        return
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _walk(child, path)
    elif is_list(field.type):
        yield from _walk(field.type.value_field, path)
    else:
        yield path, field.type


def _surrogate_path(line: bytes) -> Path | None:
    """Return the path of the first string with half of a surrogate pair; None if there is none."""
    return _path_to_surrogate(json.loads(line)) if b"\\ud" in line.lower() else None


def _path_to_surrogate(value: Any) -> Path | None:
    if isinstance(value, str):
        return () if any("\ud800" <= char <= "\udfff" for char in value) else None
    if isinstance(value, list):
        return next((path for path in map(_path_to_surrogate, value) if path is not None), None)
    if isinstance(value, dict):
        for key, inner in value.items():
            path = _path_to_surrogate(inner)
            if path is not None:
                return (key, *path)
    return None


def _contains_json(field: pa.Field) -> bool:
    if is_json(field):
        return True
    if pa.types.is_struct(field.type):
        return any(_contains_json(child) for child in field.type)
    return is_list(field.type) and _contains_json(field.type.value_field)


def _parse(data: bytes, schema: pa.Schema) -> pa.Table:
    if len(schema) == 0:
        schema = pa.schema([pa.field("", pa.null())])  # without a schema Arrow infers one
        return _parse(data, schema).select([])
    return pa.json.read_json(
        io.BytesIO(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1024)),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _parse_rows(data: bytes, schema: pa.Schema, rows: int) -> pa.Table:
    # Arrow's parser takes `null` for an object of nulls, and crashes if it is the first value of all.
    if b"null" in data and _NULL_LINE.search(data):
        raise LineError("it is not a JSON object")
    table = _parse(data, schema)
    if table.num_rows != rows:
        raise LineError("there is more than one value in the line")
    return table


def _is_parsed(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_null(kind)
    )


def _tidy(error: Exception) -> str:
    if isinstance(error, LineError):
        return error.reason
    return re.sub(r"\s*in row \d+$", "", re.sub(r"^JSON parse error: ", "", str(error)))
