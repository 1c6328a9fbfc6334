"""Runs suites in the format of sqllogictest: statements, and queries with the rows that are expected.

A record is `statement ok`, `statement error [pattern]`, `query TYPES [SORTMODE] [LABEL]` with `----` and the
rows after the SQL, or `query error [pattern]`; `include FILE`, `skipif`, `onlyif`, `hash-threshold`, `halt`,
`subtest`, `statement count N` and `control sortmode MODE` mean what they do elsewhere. The rows of a
stream have no order: `nosort` compares them as `rowsort` does.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import time as clock
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import pyarrow as pa

from headrace.base.errors import UserError, suggest
from headrace.functions.postgres.times import interval_text

SUFFIX = ".slt"
SortMode = Literal["nosort", "rowsort", "valuesort"]
TYPES = {"T": "text", "I": "integers", "R": "numbers", "?": "anything"}
_DIRECTIVES = (
    "statement",
    "query",
    "include",
    "skipif",
    "onlyif",
    "hash-threshold",
    "halt",
    "subtest",
    "control",
)
_ELSEWHERE = {
    "sleep": "a query is computed over all changes so far: nothing has to be waited for",
    "connection": "a suite has one connection",
    "system": "a suite runs no programs",
    "require": "there are no extensions to load",
    "loop": "write the records one by one",
    "foreach": "write the records one by one",
    "mode": "leave it out",
    "restart": "every query is stopped and resumed anyway",
    "load": "create the tables in the suite",
}
"""Directives of other runners that cannot be followed, and what to do instead."""
_HASHED = re.compile(r"(\d+) values hashing to ([0-9a-f]{32})")
_SEPARATOR = "----"

Row = Sequence[Any]
"""The values of a row in Python."""


class Engine(Protocol):
    """What a suite runs in."""

    name: str
    """What `skipif` and `onlyif` call it."""

    def execute(self, sql: str) -> int | None:
        """Define something, or change a table; raises a UserError if it is refused.

        Returns how many rows are changed, or None where that is not known.
        """

    def query(self, sql: str) -> list[Row]:
        """Return the rows of a SELECT; raises a UserError if it is refused."""


@dataclass(frozen=True)
class Record:
    """A statement or a query, and what is expected of it."""

    line: int
    """Where it starts in the file."""
    sql: str
    error: str | None = None
    """A pattern that its error message contains; None if it is accepted."""
    types: str | None = None
    """A letter for each column of a query; None for a statement."""
    sort: SortMode = "nosort"
    count: int | None = None
    """How many rows a statement changes; None if that is not said."""
    label: str | None = None
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mismatch:
    """A record that did not give what is expected."""

    record: Record
    message: str
    detail: Sequence[str] = ()

    def lines(self) -> list[str]:
        """The SQL, and what differs."""
        return [*self.record.sql.splitlines(), *self.detail]


@dataclass(frozen=True)
class SuiteResult:
    """What became of the records of a suite."""

    file: Path
    records: int
    seconds: float
    failures: Sequence[Mismatch] = field(default_factory=tuple)

    @property
    def passed(self) -> bool:
        """Whether every record gave what is expected."""
        return not self.failures

    def __str__(self) -> str:
        return "\n".join(
            line
            for failure in self.failures
            for line in (f"{self.file}:{failure.record.line}: {failure.message}", *failure.lines())
        )


def find_suites(path: str | Path) -> list[Path]:
    """The suite of this path, or those below a directory."""
    root = Path(path)
    return [root] if root.is_file() and root.suffix == SUFFIX else sorted(root.rglob(f"*{SUFFIX}"))


def run_suite(file: Path, engine: Engine) -> SuiteResult:
    """Run the records of a file in their order."""
    began = clock.monotonic()
    records = list(
        parse_suite(file.read_text(encoding="utf-8"), engine=engine.name, where=str(file), folder=file.parent)
    )
    labels: dict[str, list[str]] = {}
    failures = [failure for record in records if (failure := _run_record(record, engine, labels)) is not None]
    return SuiteResult(file, len(records), clock.monotonic() - began, failures)


# ------------------------------------------------------------------------------------------------- parsing


def parse_suite(text: str, *, engine: str, where: str, folder: Path | None = None) -> Iterator[Record]:
    """The records that an engine has to run; raises a UserError with the line of what cannot be read.

    Files that are included are looked for in `folder`.
    """
    lines = text.splitlines()
    number, skipped = 0, False
    default: str = "nosort"
    while number < len(lines):
        start, words = number + 1, lines[number].split()
        number += 1
        if not words or words[0].startswith("#"):
            continue
        directive, *arguments = words
        if directive == "halt":
            if not skipped:
                return
            skipped = False
            continue
        if directive in ("hash-threshold", "subtest"):
            continue
        if directive == "control":
            default = _default_sort(arguments, f"{where}:{start}")
            continue
        if directive == "include":
            if not skipped:
                yield from _included(arguments, engine=engine, where=f"{where}:{start}", folder=folder)
            skipped = False
            continue
        if directive in ("skipif", "onlyif"):
            name = arguments[0] if arguments else ""
            skipped = skipped or (name == engine) == (directive == "skipif")
            continue
        if directive not in ("statement", "query"):
            raise _unknown_directive(directive, f"{where}:{start}")
        block: list[str] = []
        while number < len(lines) and lines[number].strip():
            block.append(lines[number])
            number += 1
        try:
            record = _record(start, directive, arguments, block, default)
        except ValueError as error:
            raise UserError(str(error), where=f"{where}:{start}") from None
        if not skipped:
            yield record
        skipped = False


def _unknown_directive(directive: str, where: str) -> UserError:
    if directive in _ELSEWHERE:
        return UserError(f"`{directive}` is not supported", hint=_ELSEWHERE[directive], where=where)
    hint = suggest(directive, _DIRECTIVES, listing="the directives are")
    return UserError(f"`{directive}` is not a directive", hint=hint, where=where)


def _default_sort(arguments: Sequence[str], where: str) -> str:
    """The sort mode that `control sortmode MODE` sets."""
    if len(arguments) != 2 or arguments[0] != "sortmode" or arguments[1] not in get_args(SortMode):
        hint = f"write control sortmode {' or '.join(get_args(SortMode))}"
        raise UserError(f"`control {' '.join(arguments)}` is not supported", hint=hint, where=where)
    return arguments[1]


def _included(arguments: Sequence[str], *, engine: str, where: str, folder: Path | None) -> Iterator[Record]:
    """The records of the files that `include PATTERN` names."""
    pattern = arguments[0] if arguments else ""
    files = sorted((folder or Path()).glob(pattern)) if pattern and not Path(pattern).is_absolute() else []
    if not files:
        raise UserError(
            f"there is no file `{pattern}` to include", hint="paths are relative to the suite", where=where
        )
    for file in files:
        if f"{file}:" in where:
            raise UserError(f"`{pattern}` includes itself", where=where)
        text = file.read_text(encoding="utf-8")
        yield from parse_suite(text, engine=engine, where=f"{where}: {file}", folder=file.parent)


def _record(
    line: int, directive: str, arguments: Sequence[str], block: Sequence[str], default: str = "nosort"
) -> Record:
    texts = [text.rstrip() for text in block]
    cut = texts.index(_SEPARATOR) if _SEPARATOR in texts else len(texts)
    sql, rest = "\n".join(texts[:cut]).strip(), tuple(texts[cut + 1 :])
    if not sql:
        raise ValueError(f"`{directive}` has no SQL")
    first = arguments[0] if arguments else ""
    if first == "error":
        pattern = " ".join(arguments[1:]) or "\n".join(re.escape(text) for text in rest)
        return Record(line, sql, error=pattern, types=None if directive == "statement" else "")
    if directive == "statement":
        is_counted = len(arguments) == 2 and first == "count" and arguments[1].isdigit()
        if arguments != ["ok"] and not is_counted:
            raise ValueError("write `statement ok` or `statement error`")
        if rest:
            raise ValueError("a statement has no rows: write `query`")
        return Record(line, sql, count=int(arguments[1]) if is_counted else None)
    if not first or set(first) - set(TYPES):
        letters = ", ".join(f"{letter} for {kind}" for letter, kind in TYPES.items())
        raise ValueError(f"a query has a letter for each column: {letters}")
    sort = arguments[1] if len(arguments) > 1 else default
    if sort not in get_args(SortMode):
        raise ValueError(f"`{sort}` is not a sort mode: they are {', '.join(get_args(SortMode))}")
    if len(arguments) > 3:
        raise ValueError(f"`{' '.join(arguments[3:])}` follows the label of the query")
    if cut == len(texts):
        raise ValueError(f"a query has its rows after `{_SEPARATOR}`")
    label = arguments[2] if len(arguments) > 2 else None
    return Record(line, sql, types=first, sort=cast("SortMode", sort), label=label, expected=rest)


# ------------------------------------------------------------------------------------------------- running


def _run_record(record: Record, engine: Engine, labels: dict[str, list[str]]) -> Mismatch | None:
    try:
        if record.types is None:
            changed = engine.execute(record.sql)
            if None not in (record.count, changed) and record.count != changed:
                return Mismatch(record, f"it changes {changed} rows, and {record.count} are expected")
            rows: list[Row] = []
        else:
            rows = engine.query(record.sql)
    except UserError as error:
        if record.error is None:
            return Mismatch(record, "it is refused", str(error).splitlines())
        if re.search(record.error, str(error)) is None:
            return Mismatch(record, f"its error does not match `{record.error}`", str(error).splitlines())
        return None
    if record.error is not None:
        return Mismatch(record, "it is accepted, and an error is expected")
    return None if record.types is None else _compare(record, record.types, rows, labels)


def _compare(
    record: Record, types: str, rows: Sequence[Row], labels: dict[str, list[str]]
) -> Mismatch | None:
    wrong = [row for row in rows if len(row) != len(types)]
    if wrong:
        return Mismatch(record, f"it has {len(wrong[0])} columns, and `{types}` says {len(types)}")
    try:
        actual = [[format_value(value, kind) for value, kind in zip(row, types, strict=True)] for row in rows]
    except ValueError as error:
        return Mismatch(record, str(error))
    values = _sorted(actual, record.sort)
    if record.label is not None and labels.setdefault(record.label, values) != values:
        return Mismatch(record, f"its rows are not those of the other query with the label {record.label}")
    hashed = _HASHED.fullmatch(record.expected[0]) if len(record.expected) == 1 else None
    if hashed is not None:
        return _compare_hash(record, values, int(hashed[1]), hashed[2])
    by_row = len(types) > 1 and len(record.expected) != len(rows) * len(types)
    if by_row or len(types) == 1:
        actual_lines = Counter(" ".join(" ".join(row).split()) for row in actual)
        expected_lines = Counter(" ".join(line.split()) for line in record.expected)
    elif record.sort == "valuesort":
        actual_lines, expected_lines = Counter(values), Counter(record.expected)
    else:
        size = len(types)
        expected = [record.expected[at : at + size] for at in range(0, len(record.expected), size)]
        actual_lines = Counter("\t".join(row) for row in actual)
        expected_lines = Counter("\t".join(row) for row in expected)
    missing, unexpected = expected_lines - actual_lines, actual_lines - expected_lines
    if not missing and not unexpected:
        return None
    detail = [*(f"− {row}" for row in missing.elements()), *(f"+ {row}" for row in unexpected.elements())]
    counts = f"rows missing {missing.total()}, unexpected {unexpected.total()}"
    return Mismatch(record, counts, detail[:20])


def _sorted(rows: Sequence[Sequence[str]], sort: SortMode) -> list[str]:
    """The values in the order of the sort mode."""
    if sort == "valuesort":
        return sorted(value for row in rows for value in row)
    return [value for row in sorted(map(tuple, rows)) for value in row]


def _compare_hash(record: Record, values: Sequence[str], count: int, digest: str) -> Mismatch | None:
    if record.sort == "nosort":
        return Mismatch(record, "a hash needs `rowsort` or `valuesort`: the rows of a stream have no order")
    text = "".join(f"{value}\n" for value in values).encode()
    actual = hashlib.md5(text, usedforsecurity=False).hexdigest()
    if (len(values), actual) == (count, digest):
        return None
    return Mismatch(record, f"it gives {len(values)} values hashing to {actual}")


# ------------------------------------------------------------------------------------------------ formatting


def format_value(value: Any, kind: str) -> str:
    """A value as suites write it: NULL, (empty), numbers of kind R with three decimals."""
    if value is None:
        return "NULL"
    if kind == "I":
        return _integer(value)
    if kind == "R":
        try:
            return f"{Decimal(str(value)):.3f}"
        except ArithmeticError:
            raise ValueError(f"`{value}` is not a number, and the column is of kind R") from None
    text = _text(value)
    return text or "(empty)"


def _integer(value: Any) -> str:
    try:
        return str(int(value))
    except (TypeError, ValueError):
        raise ValueError(f"`{value}` is not an integer, and the column is of kind I") from None


def _time_text(value: dt.datetime | dt.time | dt.timedelta | pa.MonthDayNano) -> str:
    """A time or an interval as PostgreSQL writes it."""
    if isinstance(value, pa.MonthDayNano):
        return interval_text(*value)
    if isinstance(value, dt.timedelta):  # between two instants: whole days and a time
        days = int(value / dt.timedelta(days=1))
        rest = value - dt.timedelta(days=days)
        return interval_text(0, days, rest // dt.timedelta(microseconds=1) * 1_000)
    text = value.isoformat(sep=" ") if isinstance(value, dt.datetime) else value.isoformat()
    text = text.removesuffix("+00:00")
    return text.rstrip("0") if value.microsecond else text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime | dt.time | dt.timedelta | pa.MonthDayNano):
        return _time_text(value)
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Mapping):
        return "(" + ",".join("" if item is None else _member(item) for item in value.values()) + ")"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "{" + ",".join("NULL" if item is None else _item(item) for item in value) + "}"
    return str(value)


def _item(value: Any) -> str:
    """An item of a list as PostgreSQL writes it: in quotes where it could be taken for something else."""
    text = _text(value)
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    if is_list or (text and text.upper() != "NULL" and not re.search(r'[\s,"\\{}]', text)):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _member(value: Any) -> str:
    """A value of a row as PostgreSQL writes it."""
    text = ("t" if value else "f") if isinstance(value, bool) else _text(value)
    if text and not re.search(r'[\s,"\\()]', text):
        return text
    return '"' + re.sub(r'(["\\])', r"\1\1", text) + '"'
