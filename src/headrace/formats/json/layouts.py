"""Read JSON lines with the same layout without parsing each of them.

Most lines of a file are written by one program: they have the same members in the same order, and differ only
in strings, numbers and literals. The layout of a line is its fixed bytes and the positions of its values. The
quotes of other lines give the positions of their values, and the bytes between must be equal. Lines without a
layout, such as those with escapes or lists, are left to a parser.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.formats._shared.refused import convert_accepted
from headrace.formats.base import Path

_LEAST = 64 * 1024
"""The least number of bytes for which layouts are used."""
_MOST = 2**31 - 1
_TRIES = 16
"""The most layouts for a block of lines."""
_OTHERS = 8
"""At most one in this many lines may be without a layout."""
_TOGETHER = 16
"""The number of lines without a layout that are parsed together: if one is bad, all of them are refused."""
_QUOTE, _SLASH, _NEWLINE, _SPACE, _ZERO, _NULL = b'"\\\n 0n'
_NULL_TEXT = b"null"
_STRUCTURE = re.compile(rb"[{}]|[^\s{}:,]+")
_BARE = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false)$"

_WORDS = pa.array(["true", "false"])
_OBJECT = pa.struct([])
_TEN = 10

_Places = NDArray[np.int64]
_Mask = NDArray[np.bool_]


def _is_read(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_read(child.type) for child in kind)
    return bool(pa.types.is_string(kind) or pa.types.is_timestamp(kind) or _is_bare(kind))


@functools.lru_cache
def _is_bare(kind: pa.DataType) -> bool:
    """Whether values of the type are written without quotes."""
    number = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    return bool(number or pa.types.is_boolean(kind))


class _Value(NamedTuple):
    """The start and end of a value in a layout.

    A position is a quote and a number of bytes after it. Quote 0 is the start of the line, then come the
    quotes in it, and last its end.
    """

    path: Path
    quoted: bool
    begin: tuple[int, int]
    end: tuple[int, int]


class _Layout(NamedTuple):
    """The objects and values of lines of one layout, and the bytes before, between and after the values."""

    structs: list[Path]
    values: list[_Value]
    fixed: list[bytes]


def _layout_of(line: bytes) -> _Layout | None:
    """Return the layout of a line without escapes; None if it has none."""
    try:
        if not isinstance(json.loads(line), dict):
            return None
    except (ValueError, RecursionError):
        return None
    structs: list[Path] = []
    values: list[_Value] = []
    fixed, name = [b""], ""
    path: Path = ()
    parts = line.split(b'"')
    for index, part in enumerate(parts):
        if index % 2 and not parts[index + 1].lstrip().startswith(b":"):
            values.append(_Value((*path, name), True, (index, 1), (index + 1, 0)))
            fixed[-1] += b'"'
            fixed.append(b'"')
        elif index % 2:
            name = part.decode()
            fixed[-1] += b'"' + part + b'"'
        elif b"[" in part:
            return None
        else:
            done = 0
            for token in _STRUCTURE.finditer(part):
                if token[0] == b"}":
                    path = path[:-1]
                elif token[0] == b"{":
                    path = (*path, name) if structs else ()  # the object that is the line has no name
                    structs.append(path)
                else:
                    begin, end = token.start() + 1, token.end() - len(part)
                    values.append(_Value((*path, name), False, (index, begin), (index + 1, end)))
                    fixed[-1] += part[: token.start()]
                    fixed.append(b"")
                    done = token.end()
            fixed[-1] += part[done:]
    paths = [*structs, *(value.path for value in values)]
    return _Layout(structs, values, fixed) if values and len(set(paths)) == len(paths) else None


class LaidOut(NamedTuple):
    """The rows that were read, and the lines that could not be, counted without blank ones."""

    rows: pa.Table
    refused: NDArray[np.int64]


class LineLayouts:
    """The layouts of lines with the columns of a schema, collected while reading."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.kinds = dict(_walk(schema, ()))
        self.by_quotes: dict[int, list[_Layout]] = {}
        """By the number of quotes in a line."""
        self.is_worthwhile = bool(len(schema)) and all(_is_read(column.type) for column in schema)
        """Whether rows can be read by layouts, by the columns and the lines so far."""

    def read(self, data: bytes, *, parse: Callable[[list[bytes]], pa.Table]) -> LaidOut | None:
        """Read lines in UTF-8; None if these and all further lines have to be parsed.

        `parse` reads the few lines without a layout; it raises a ValueError if it cannot.
        """
        if not self.is_worthwhile or not _LEAST <= len(data) <= _MOST:
            return None
        try:
            result = self._read(data, parse)
        except ValueError:
            result = None
        self.is_worthwhile = result is not None  # what some lines are like, those behind them are
        return result

    def _read(self, data: bytes, parse: Callable[[list[bytes]], pa.Table]) -> LaidOut | None:
        lines = _Lines(data, self)
        lines.match()
        if np.count_nonzero(~lines.matched) * _OTHERS > len(lines.matched):
            return None
        table = lines.table()
        if lines.refused.any():
            table = table.filter(pa.array(~lines.refused[lines.matched]))
            lines.matched &= ~lines.refused
        rest = np.flatnonzero(~lines.matched)
        if len(rest) * _OTHERS > len(lines.matched):
            return None
        if not len(rest):
            return LaidOut(table, rest)
        tables, parsed, refused = [table], [np.flatnonzero(lines.matched)], [rest[:0]]
        for begin in range(0, len(rest), _TOGETHER):
            rows = rest[begin : begin + _TOGETHER]
            try:
                tables.append(parse([data[lines.begins[row] : lines.ends[row]] for row in rows.tolist()]))
            except ValueError:
                refused.append(rows)
            else:
                parsed.append(rows)
        if len(tables) > 1:
            order = np.argsort(np.concatenate(parsed), kind="stable")
            table = pa.concat_tables(tables).take(pa.array(order))
        return LaidOut(table, np.concatenate(refused))

    def layout_of(self, line: bytes) -> _Layout | None:
        """Return the layout of a line, if its objects and strings fit the columns."""
        layout = _layout_of(line)
        if layout is None:
            return None
        for path in layout.structs:
            if path and not pa.types.is_struct(self.kinds.get(path, _OBJECT)):
                return None
        quoted = (self.kinds.get(value.path, pa.string()) for value in layout.values if value.quoted)
        return None if any(pa.types.is_struct(kind) or _is_bare(kind) for kind in quoted) else layout


class _Column(NamedTuple):
    """The positions of the values of one path, in the lines that have it."""

    begins: _Places
    ends: _Places
    present: _Mask


class _Lines:
    """Lines that are not blank, and the positions of values in those with a layout (`matched`)."""

    def __init__(self, data: bytes, layouts: LineLayouts) -> None:
        self._data, self._layouts = data, layouts
        self._bytes = np.frombuffer(data, np.uint8)
        breaks = np.flatnonzero(self._bytes < _SPACE)
        odd = breaks[self._bytes[breaks] != _NEWLINE]
        if len(odd):
            breaks = breaks[self._bytes[breaks] == _NEWLINE]
        if not data.endswith(b"\n"):
            breaks = np.append(breaks, len(data))
        self.begins, self.ends = np.append(0, breaks[:-1] + 1), breaks
        self._quotes = np.flatnonzero(self._bytes == _QUOTE)
        last = np.searchsorted(self._quotes, breaks)
        self._counts = np.diff(last, prepend=0)
        self._firsts = last - self._counts
        if b"\\" in data:
            odd = np.append(odd, np.flatnonzero(self._bytes == _SLASH))
        # A line whose quotes tell nothing counts as one without.
        self._counts[np.searchsorted(breaks, odd)] = 0
        self._drop_blank()
        self.matched: _Mask = np.zeros(len(self.ends), np.bool_)
        self._structs: dict[Path, _Mask] = {}
        self._columns: dict[tuple[Path, bool], _Column] = {}
        self._ignored: list[tuple[_Places, _Places, _Places]] = []
        self.refused: _Mask = np.zeros(len(self.ends), np.bool_)
        """Lines with a layout and a value that does not fit its column."""

    def _drop_blank(self) -> None:
        bare = np.flatnonzero(self._counts == 0).tolist()
        blank = [row for row in bare if not self._data[self.begins[row] : self.ends[row]].strip()]
        if blank:
            self.begins, self.ends = np.delete(self.begins, blank), np.delete(self.ends, blank)
            self._counts, self._firsts = np.delete(self._counts, blank), np.delete(self._firsts, blank)

    def match(self) -> None:
        """Find the layouts of as many lines as possible, the most frequent numbers of quotes first."""
        frequent, tries = np.bincount(self._counts), _TRIES
        for count in np.argsort(-frequent)[: np.count_nonzero(frequent)].tolist():
            rows = np.flatnonzero(self._counts == count) if count else self._counts[:0]
            layouts = self._layouts.by_quotes.setdefault(count, [])
            for layout in layouts:
                rows = self._match(layout, rows, count)
            while tries and len(rows):
                tries -= 1
                first = int(rows[0])
                new = self._layouts.layout_of(self._data[self.begins[first] : self.ends[first]])
                if new is None:
                    rows = rows[1:]
                    continue
                rows = self._match(new, rows, count)
                if len(layouts) < _TRIES:
                    layouts.append(new)

    def _match(self, layout: _Layout, rows: _Places, count: int) -> _Places:
        """Record the positions of values in the lines of a layout; return the other lines."""
        # Lines that are of another layout begin in another way, most of them.
        fits, unmatched = self._is_fixed(self.begins[rows], layout.fixed[0]), rows[:0]
        if not fits.all():
            rows, unmatched = rows[fits], rows[~fits]
        if not len(rows):
            return unmatched
        ends, firsts = self.ends[rows], self._firsts[rows] - 1

        def find(position: tuple[int, int]) -> _Places:
            quote, distance = position
            positions: _Places = ends if quote > count else self._quotes[firsts + quote]
            return positions + distance if distance else positions

        fits = find(layout.values[-1].end) + len(layout.fixed[-1]) == ends
        spans = []
        for value, fixed in zip(layout.values, layout.fixed[1:], strict=True):
            end = find(value.end)
            fits &= self._is_fixed(end, fixed)
            if value.quoted and value.path not in self._layouts.kinds:
                continue
            begin = find(value.begin)
            if not value.quoted:
                fits &= begin < end
            spans.append((value, begin, end))
        all_fit = bool(fits.all())
        if not all_fit:
            rows, unmatched = rows[fits], np.sort(np.append(unmatched, rows[~fits]))
        self.matched[rows] = True
        for path in layout.structs:
            if path in self._layouts.kinds:
                self._structs.setdefault(path, np.zeros_like(self.matched))[rows] = True
        for value, begin, end in spans:
            span = (begin, end) if all_fit else (begin[fits], end[fits])
            self._note(value, rows, *span)
        return unmatched

    def _note(self, value: _Value, rows: _Places, begins: _Places, ends: _Places) -> None:
        key, present = (value.path, value.quoted), np.ones(len(rows), np.bool_)
        if not value.quoted:
            present = self._bytes[begins] != _NULL
            if not present.all():
                nulls = ends[~present] - begins[~present] == len(_NULL_TEXT)
                nulls &= self._is_fixed(begins[~present], _NULL_TEXT)
                self.refused[rows[~present][~nulls]] = True
        if value.path not in self._layouts.kinds:
            if present.any():
                self._ignored.append((begins[present], ends[present], rows[present]))
            return
        if key not in self._columns:
            self._columns[key] = _Column(self.begins.copy(), self.begins.copy(), np.zeros_like(self.matched))
        column = self._columns[key]
        column.begins[rows], column.ends[rows] = begins, ends
        column.present[rows] = present

    def _is_fixed(self, starts: _Places, fixed: bytes) -> _Mask:
        """Return where the bytes at some positions equal these."""
        size = len(fixed)
        if size > len(self._data):
            return np.zeros(len(starts), np.bool_)
        windows = np.ndarray((len(self._data) - size + 1,), f"V{size}", self._data, 0, (1,))
        inside = starts < len(windows)
        pieces = windows[np.where(inside, starts, 0)]
        if pieces.tobytes() == fixed * len(starts):  # much faster than to compare them one by one
            return inside
        same: _Mask = inside & (pieces == np.void(fixed))
        return same

    # ----------------------------------------------------------------------------------- columns

    def table(self) -> pa.Table:
        """Return the rows of lines with a layout; those with a value that does not fit are then `refused`."""
        if self._ignored:
            begins, ends, rows = map(np.concatenate, zip(*self._ignored, strict=True))
            order = np.argsort(begins, kind="stable")
            ignored = _Column(begins[order], ends[order], np.ones(len(begins), np.bool_))
            self._bare_texts(ignored, rows[order])
        bare = {
            path: self._bare_texts(self._chosen(column), self._rows)
            for (path, quoted), column in self._columns.items()
            if not quoted
        }
        columns = [self._read((field.name,), field.type, bare) for field in self._layouts.schema]
        return pa.table(columns, schema=self._layouts.schema)

    def _read(self, path: Path, kind: pa.DataType, bare: Mapping[Path, pa.Array]) -> pa.Array:
        if _is_bare(kind):
            if path not in bare:
                return pa.nulls(self._size, kind)
            texts = bare[path]
            if not pa.types.is_boolean(kind):
                return self._cast(texts, kind, _read_numbers)
            if not pc.all(pc.is_in(texts.drop_null(), _WORDS), min_count=0).as_py():
                self._refuse(pc.invert(pc.is_in(pc.fill_null(texts, "true"), _WORDS)))
            return pc.equal(texts, "true")
        if path in bare and bare[path].null_count < self._size:
            self._refuse(bare[path].is_valid())
        if pa.types.is_struct(kind):
            return self._read_struct(path, kind, bare)
        if (path, True) not in self._columns:
            return pa.nulls(self._size, kind)
        texts = self._texts(self._chosen(self._columns[path, True]))
        return texts if pa.types.is_string(kind) else self._cast(texts, kind, read_times)

    def _refuse(self, mask: pa.Array) -> None:
        """Refuse some of the lines with a layout; a ValueError if they are too many."""
        self.refused[self._rows[mask.to_numpy(zero_copy_only=False)]] = True
        if np.count_nonzero(self.refused) * _OTHERS > len(self.refused):
            raise ValueError

    def _cast(
        self, texts: pa.Array, kind: pa.DataType, cast: Callable[[pa.Array, pa.DataType], pa.Array]
    ) -> pa.Array:
        """Convert strings; lines whose string does not fit are refused, and their value is null."""
        converted, refused = convert_accepted(texts, lambda part: cast(part, kind))
        if refused:
            mask = np.zeros(len(texts), np.bool_)
            mask[list(refused)] = True
            self._refuse(pa.array(mask))
        return converted

    def _read_struct(self, path: Path, kind: pa.DataType, bare: Mapping[Path, pa.Array]) -> pa.Array:
        if path not in self._structs:
            return pa.nulls(self._size, kind)
        missing = ~self._structs[path][self.matched]
        children = [self._read((*path, child.name), child.type, bare) for child in kind]
        return pa.StructArray.from_arrays(
            children, fields=list(kind), mask=pa.array(missing) if missing.any() else None
        )

    def _texts(self, column: _Column) -> pa.Array:
        """Return values as strings."""
        begins, ends, present = column
        bounds = np.empty((len(begins), 2), np.int32)
        bounds[:, 0], bounds[:, 1] = begins, ends
        # What lies between two values of a column is a text as well, which is not taken.
        pieces = _array(2 * len(begins) - 1, None, bounds, self._data)
        texts = pieces.take(pa.array(np.arange(0, 2 * len(begins), 2)))
        if not present.all():
            texts = _array(len(begins), np.packbits(present, bitorder="little"), *texts.buffers()[1:])
        return texts

    def _bare_texts(self, column: _Column, rows: _Places) -> pa.Array:
        """Return values without quotes as strings; lines without a number or literal are refused."""
        texts = self._texts(column)
        digits = np.frombuffer(texts.buffers()[2], np.uint8)
        zeros = (self._bytes[column.begins] == _ZERO) & (column.ends > column.begins + 1)
        if (digits - _ZERO < _TEN).all() and not zeros.any():
            return texts
        valid = pc.match_substring_regex(texts, _BARE)
        if pc.all(valid, min_count=0).as_py():
            return texts
        wrong = pc.invert(pc.fill_null(valid, True))
        self.refused[rows[wrong.to_numpy(zero_copy_only=False)]] = True
        return pc.if_else(wrong, None, texts)

    @functools.cached_property
    def _rows(self) -> _Places:
        """Return the lines with a layout."""
        return np.flatnonzero(self.matched)

    @functools.cached_property
    def _size(self) -> int:
        """Return the number of lines with a layout."""
        return int(np.count_nonzero(self.matched))

    def _chosen(self, column: _Column) -> _Column:
        """Select the entries of lines with a layout."""
        matched = self.matched
        if self._size == len(matched):
            return column
        return _Column(column.begins[matched], column.ends[matched], column.present[matched])


def _walk(fields: Iterable[pa.Field], path: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for field in fields:
        yield (*path, field.name), field.type
        if pa.types.is_struct(field.type):
            yield from _walk(field.type, (*path, field.name))


def _read_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = texts.cast(kind)
    if pa.types.is_floating(kind) and pc.any(pc.is_inf(numbers)).as_py():
        raise pa.ArrowInvalid("a number is too large")
    return numbers


def read_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert strings to timestamps; a ValueError if one is not, or only some have a time zone."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        # With a zone they are instants. An error for each text is slow: the first tells whether there is one.
        try:
            texts.drop_null()[:1].cast(pa.timestamp(kind.unit, "UTC"))
        except pa.ArrowInvalid:
            raise error from None  # it names the text that is no time
        return texts.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


def _array(size: int, valid: Any, bounds: Any, data: Any) -> pa.Array:
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), size, buffers)
