"""Reads the statements of a suite that change tables: what they name, and the SQL of their parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.base.errors import UserError
from headrace.sql.parse.dialect import tokenize

_NAME = r'(?:"[^"]+"|\w+)'
_CREATE_TABLE = re.compile(rf"CREATE\s+TABLE\s+(IF\s+NOT\s+EXISTS\s+)?({_NAME})\s*", re.IGNORECASE)
_CREATE_VIEW = re.compile(
    rf"CREATE\s+(OR\s+REPLACE\s+)?(?:MATERIALIZED\s+)?VIEW\s+(IF\s+NOT\s+EXISTS\s+)?({_NAME})\s*"
    r"(\([^()]*\))?\s*AS\s+",
    re.IGNORECASE,
)
_DROP = re.compile(
    rf"DROP\s+(TABLE|INDEX|(?:MATERIALIZED\s+)?VIEW)\s+(IF\s+EXISTS\s+)?({_NAME}(?:\s*,\s*{_NAME})*)"
    r"(?:\s+(?:CASCADE|RESTRICT))?",
    re.IGNORECASE,
)
_INSERT = re.compile(
    rf"INSERT\s+INTO\s+({_NAME})\s*(\([^()]*\))?\s*(?=VALUES\b|SELECT\b|WITH\b|\()", re.IGNORECASE
)
_UPDATE = re.compile(rf"UPDATE\s+({_NAME})\s+SET\s+", re.IGNORECASE)
_DELETE = re.compile(rf"DELETE\s+FROM\s+({_NAME})\b", re.IGNORECASE)
_BEHIND_DEFAULT = ("NOT", "NULL", "PRIMARY", "GENERATED", "METADATA")


@dataclass(frozen=True)
class TableText:
    """CREATE TABLE: its columns as they are written, without their defaults, or the query behind AS."""

    name: str
    is_optional: bool
    """Whether it may be there already."""
    columns: str
    defaults: Mapping[str, str]
    """The SQL of the default of a column."""
    query: str | None


def read_create_table(text: str) -> TableText:
    """Read a CREATE TABLE; raises a UserError if it is none."""
    match = _CREATE_TABLE.match(text)
    if match is None:
        raise UserError("a table has a name: CREATE TABLE name (column TYPE, …)")
    rest = text[match.end() :]
    if behind_as := re.match(r"AS\s+", rest, re.IGNORECASE):
        return TableText(_table_name(match[2]), bool(match[1]), "", {}, rest[behind_as.end() :])
    if not rest.startswith("("):
        raise UserError("a table of a suite has columns, or a query behind AS, and no connector")
    end = _closing(rest)
    if rest[end + 1 :].strip() and not re.fullmatch(r"\s*APPEND\s+ONLY", rest[end + 1 :], re.IGNORECASE):
        raise UserError(
            f"`{rest[end + 1 :].strip()}` behind the columns of a table",
            hint="a table of a suite has columns, and no query or connector",
        )
    columns, defaults = [], {}
    for column in _listed(rest[1:end], "()<>"):  # STRUCT<a INT, b INT>
        definition, default = _without_default(column)
        columns.append(definition)
        if default is not None:
            defaults[unquoted(definition.split()[0])] = default
    return TableText(_table_name(match[2]), bool(match[1]), ",".join(columns), defaults, None)


def _closing(text: str) -> int:
    """Where the first parenthesis of a text ends."""
    depth = 0
    for token in tokenize(text):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return token.start
    raise UserError("a parenthesis is not closed")


def _without_default(column: str) -> tuple[str, str | None]:
    """The definition of a column without its DEFAULT, and that."""
    tokens, depth = tokenize(column), 0
    start = end = None
    for index, token in enumerate(tokens):
        depth += (token.text in "([") - (token.text in ")]")
        word = token.text.upper()
        if start is None and depth == 0 and word == "DEFAULT":
            start, end = token, len(column)
        elif start is not None and depth == 0 and word in _BEHIND_DEFAULT and index > tokens.index(start) + 1:
            end = token.start
            break
    if start is None:
        return column, None
    return f"{column[: start.start]}{column[end:]}", column[start.end + 1 : end].strip()


@dataclass(frozen=True)
class ViewText:
    """CREATE VIEW."""

    name: str
    replaces: bool
    is_optional: bool
    definition: str
    """The statement as Headrace reads it."""


def read_create_view(text: str) -> ViewText:
    """Read a CREATE [MATERIALIZED] VIEW; raises a UserError if it is none."""
    match = _CREATE_VIEW.match(text)
    if match is None:
        raise UserError("a view has a name: CREATE VIEW name AS SELECT …")
    name, query = match[3], text[match.end() :]
    if match[4]:
        query = f"SELECT * FROM ({query}) AS q {match[4]}"  # noqa: S608 - it is the SQL of a suite
    return ViewText(_table_name(name), bool(match[1]), bool(match[2]), f"CREATE VIEW {name} AS {query}")


@dataclass(frozen=True)
class DropText:
    """DROP of tables, views or indexes."""

    kind: str
    names: Sequence[str]
    is_optional: bool


def read_drop(text: str) -> DropText:
    """Read a DROP; raises a UserError if it is none."""
    match = _DROP.fullmatch(text)
    if match is None:
        raise UserError("what is dropped is a table, a view or an index: DROP TABLE name")
    names = [_table_name(name.strip()) for name in match[3].split(",")]
    return DropText(match[1].upper(), names, bool(match[2]))


@dataclass(frozen=True)
class InsertText:
    """INSERT of the rows of a query."""

    name: str
    columns: Sequence[str] | None
    query: str


def read_insert(text: str) -> InsertText:
    """Read an INSERT; raises a UserError if it is none."""
    match = _INSERT.match(text)
    if match is None:
        raise UserError("it is no INSERT INTO table [(columns)] VALUES … or SELECT …")
    columns = None if match[2] is None else [unquoted(name.strip()) for name in match[2][1:-1].split(",")]
    return InsertText(_table_name(match[1]), columns, text[match.end() :])


@dataclass(frozen=True)
class ChangeText:
    """UPDATE or DELETE: of the rows of a table joined with others that pass a condition."""

    name: str
    values: Mapping[str, str]
    """The SQL of the new value of each column that an UPDATE sets."""
    others: str
    """The other tables."""
    condition: str


def read_update(text: str) -> ChangeText:
    """Read an UPDATE; raises a UserError if it is none."""
    match = _UPDATE.match(text)
    if match is None:
        raise UserError("it is no UPDATE table SET column = value [FROM …] [WHERE …]")
    rest, condition = _cut(text[match.end() :], "WHERE")
    assignments, others = _cut(rest, "FROM")
    values = {}
    for assignment in _listed(assignments):
        column, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"`{assignment.strip()}` does not set a column of the table")
        values[unquoted(column.strip())] = value.strip()
    return ChangeText(_table_name(match[1]), values, others, condition)


def read_delete(text: str) -> ChangeText:
    """Read a DELETE; raises a UserError if it is none."""
    match = _DELETE.match(text)
    if match is None:
        raise UserError("it is no DELETE FROM table [USING …] [WHERE …]")
    rest, condition = _cut(text[match.end() :], "WHERE")
    rest, others = _cut(rest, "USING")
    if rest.strip():
        raise UserError(f"`{rest.strip()}` is not expected in a DELETE")
    return ChangeText(_table_name(match[1]), {}, others, condition)


def _table_name(name: str) -> str:
    return unquoted(name).lower()


def unquoted(name: str) -> str:
    """A name as it is compared.

    >>> unquoted("Id"), unquoted('"Id"')
    ('id', 'Id')
    """
    return name[1:-1] if name.startswith('"') else name.lower()


def _listed(text: str, brackets: str = "()[]{}") -> list[str]:
    """The parts of a list between commas that are not in brackets or strings."""
    depth, begin, parts = 0, 0, []
    for token in tokenize(text):
        depth += sum(token.text.count(bracket) for bracket in brackets[::2])
        depth -= sum(token.text.count(bracket) for bracket in brackets[1::2])
        if depth == 0 and token.text == ",":
            parts.append(text[begin : token.start])
            begin = token.end + 1
    return [*parts, text[begin:]]


def _cut(text: str, word: str) -> tuple[str, str]:
    """What stands before and behind a keyword that is not in parentheses."""
    depth = 0
    for token in tokenize(text):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.text.upper() == word:
            return text[: token.start], text[token.end + 1 :].strip()
    return text, ""
