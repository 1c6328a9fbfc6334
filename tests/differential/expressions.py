"""Random expressions, written for the stream, for DataFusion over all rows and, where it can, for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.differential.data import Column, Kind

NUMBERS: tuple[Kind, ...] = ("int", "dyadic", "float")
ORDERED: tuple[Kind, ...] = ("int", "dyadic", "float", "text", "bool", "time")
_HOLE = re.compile(r"\{\}")


@dataclass(frozen=True)
class Sql:
    """One meaning in three dialects; None where DuckDB has no way to say it."""

    stream: str
    batch: str
    duck: str | None

    @classmethod
    def same(cls, text: str) -> Sql:
        return cls(text, text, text)

    def without_duck(self) -> Sql:
        return replace(self, duck=None)


def write(pattern: str, *parts: Sql, batch: str | None = None, duck: str | None = "") -> Sql:
    """Fill the holes of a pattern; `batch` and `duck` are patterns of their own where they differ."""
    batch = pattern if batch is None else batch
    duck = batch if duck == "" else duck
    known = duck is not None and all(part.duck is not None for part in parts)
    return Sql(
        _fill(pattern, [part.stream for part in parts]),
        _fill(batch, [part.batch for part in parts]),
        _fill(duck, [part.duck or "" for part in parts]) if known and duck is not None else None,
    )


def _fill(pattern: str, texts: Sequence[str]) -> str:
    rest = iter(texts)
    made = _HOLE.sub(lambda _: next(rest), pattern)
    assert next(rest, None) is None, (pattern, texts)
    return made


def join_texts(separator: str, parts: Sequence[Sql]) -> Sql:
    """The parts with a separator between them."""
    if not parts:
        return Sql.same("")
    return write(separator.join("{}" for _ in parts), *parts)


@dataclass(frozen=True)
class Value:
    """An expression of some kind."""

    sql: Sql
    kind: Kind
    exact: bool = True
    part: str | None = None

    def named(self, name: str) -> Column:
        return Column(name, self.kind, self.exact, self.part)


def reference(column: Column, table: str = "") -> list[Value]:
    """A column as values: itself, or both ends of a window."""
    name = f"{table}{column.name}"
    if column.kind != "window":
        return [Value(Sql.same(name), column.kind, column.exact, column.part)]
    return [
        Value(
            Sql(
                f"{name}.{side}",
                f"arrow_cast({name}_{side[0]}, 'Timestamp(Nanosecond, None)')",
                f"make_timestamp_ns({name}_{side[0]})",
            ),
            "time",
            part=side if column.part == "window" else None,
        )
        for side in ("start", "end")
    ]


def references(columns: Sequence[Column], table: str = "") -> list[Value]:
    """All columns as values."""
    return [value for column in columns for value in reference(column, table)]


def exact_values(values: Sequence[Value]) -> list[Value]:
    return [value for value in values if value.exact]


def of_kinds(values: Sequence[Value], kinds: Sequence[Kind]) -> list[Value]:
    return [value for value in values if value.kind in kinds]


LITERALS: dict[Kind, tuple[str, ...]] = {
    "int": ("0", "1", "2", "-3", "7"),
    "dyadic": ("0.5", "-1.25", "2.0"),
    "float": ("0.1", "2.5"),
    "text": ("'a'", "'b'", "''", "'été'"),
    "bool": ("TRUE", "FALSE"),
    "time": ("TIMESTAMP '1970-01-01 00:00:01'", "TIMESTAMP '2026-01-01 00:00:10'"),
}


def literal(draw: st.DrawFn, kind: Kind) -> Value:
    text = draw(st.sampled_from(LITERALS[kind]))
    duck = f"CAST({text} AS DOUBLE)" if kind in ("dyadic", "float") else text  # it would be a decimal
    return Value(Sql(text, text, duck), kind)


def value(draw: st.DrawFn, values: Sequence[Value], kind: Kind, depth: int = 2) -> Value:
    """An expression of this kind over exact or inexact values."""
    leaves = of_kinds(values, [kind])
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(leaves)) if leaves else literal(draw, kind)
    if (chosen := _choose(draw, values, kind, depth - 1)) is not None:
        return chosen
    if kind == "int":
        return _integer(draw, values, depth - 1)
    if kind == "text":
        return _text(draw, values, depth - 1)
    if kind == "bool":
        return condition(draw, values, depth - 1)
    if kind == "time":
        return _time(draw, values, depth - 1)
    return _number(draw, values, depth - 1, kind)


def _choose(draw: st.DrawFn, values: Sequence[Value], kind: Kind, depth: int) -> Value | None:
    """Expressions that exist for every kind: CASE, coalesce, nullif."""
    shape = draw(st.integers(0, 5))
    made: Value | None = None
    if shape == 0:
        parts = [condition(draw, values, depth), *(value(draw, values, kind, depth) for _ in range(2))]
        # A CASE of different types is cast to that of its first branch.
        one = "CAST({} AS BIGINT)" if kind == "int" else "{}"
        made = _made(f"CASE WHEN {{}} THEN {one} ELSE {one} END", kind, parts)
    elif shape == 1:
        made = _made("coalesce({}, {})", kind, [value(draw, values, kind, depth) for _ in range(2)])
    elif shape == 2:
        compared = [value(draw, exact_values(values), kind, depth), literal(draw, kind)]
        made = _made("nullif({}, {})", kind, compared)
    if made is not None and kind == "time":
        return replace(made, sql=made.sql.without_duck())  # DuckDB's instants have two types
    return made


def _made(pattern: str, kind: Kind, parts: Sequence[Value], **dialects: str | None) -> Value:
    sql = write(pattern, *(part.sql for part in parts), **dialects)
    return Value(sql, kind, all(part.exact for part in parts))


def _integer(draw: st.DrawFn, values: Sequence[Value], depth: int) -> Value:
    shape = draw(st.integers(0, 8))
    big = "CAST({} AS BIGINT)"
    if shape <= 2:
        operator = draw(st.sampled_from(["+", "-", "*"]))
        return _made(
            f"({big} {operator} {big})", "int", [value(draw, values, "int", depth) for _ in range(2)]
        )
    number = value(draw, values, "int", depth)
    if shape == 3:
        return _made(f"({big} % {draw(st.sampled_from([2, 3, -5]))})", "int", [number])
    if shape == 4:
        return _made(f"abs({big})", "int", [number])
    if shape == 5:
        return _made(f"({big} / {draw(st.sampled_from([2, 3, -5]))})", "int", [number], duck=None)
    if shape == 6:
        return _made("length({})", "int", [value(draw, values, "text", depth)])
    if shape == 7:
        pair = [number, value(draw, values, "int", depth)]
        return _made(f"{draw(st.sampled_from(['greatest', 'least']))}({big}, {big})", "int", pair)
    part = draw(st.sampled_from(["second", "minute", "hour", "day", "month", "year", "dow"]))
    return _made(f"date_part('{part}', {{}})", "int", [value(draw, values, "time", depth)], duck=None)


def _number(draw: st.DrawFn, values: Sequence[Value], depth: int, kind: Kind) -> Value:
    if kind == "dyadic":
        operator = draw(st.sampled_from(["+", "-"]))
        return _made(f"({{}} {operator} {{}})", kind, [value(draw, values, kind, depth) for _ in range(2)])
    shape = draw(st.integers(0, 3))
    other = value(draw, values, draw(st.sampled_from(NUMBERS)), depth)
    if shape == 0:
        return _made("CAST({} AS DOUBLE)", "float", [other])
    if shape == 1:
        return _made("({} / 4.0)", "float", [value(draw, values, "float", depth)])
    if shape == 2:
        return _made("floor({})", "float", [value(draw, exact_values(values), "float", depth)], duck=None)
    return _made("({} * CAST({} AS DOUBLE))", "float", [value(draw, values, "float", depth), other])


def _text(draw: st.DrawFn, values: Sequence[Value], depth: int) -> Value:
    shape = draw(st.integers(0, 6))
    text = value(draw, values, "text", depth)
    if shape == 0:
        return _made("upper({})", "text", [text])
    if shape == 1:
        return _made("substr({}, 1, 2)", "text", [text])
    if shape == 2:
        return _made("({} || {})", "text", [text, value(draw, values, "text", depth)])
    if shape == 3:
        return _made("replace({}, 'a', 'xy')", "text", [text])
    if shape == 4:
        return _made("CAST(CAST({} AS BIGINT) AS VARCHAR)", "text", [value(draw, values, "int", depth)])
    if shape == 5:
        return _made("trim({})", "text", [text])
    return _made("concat({}, '-', {})", "text", [text, value(draw, values, "text", depth)])


def _time(draw: st.DrawFn, values: Sequence[Value], depth: int) -> Value:
    shape = draw(st.integers(0, 2))
    time = value(draw, values, "time", depth)
    if shape == 0:
        unit = draw(st.sampled_from(["second", "minute", "hour", "day"]))
        return _made(f"date_trunc('{unit}', {{}})", "time", [time], duck=None)
    if shape == 1:
        return _made("({} + INTERVAL '90 seconds')", "time", [time], duck=None)
    return _made("date_bin(INTERVAL '7 seconds', {})", "time", [time], duck=None)


def condition(draw: st.DrawFn, values: Sequence[Value], depth: int = 1) -> Value:
    """A condition over exact values."""
    exact = exact_values(values)
    shape = draw(st.integers(0, 6))
    if shape <= 2 or depth == 0:
        kind: Kind = draw(st.sampled_from(sorted({one.kind for one in of_kinds(exact, ORDERED)}) or ["int"]))
        operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
        left = value(draw, exact, kind, depth)
        other = literal(draw, kind) if draw(st.booleans()) else value(draw, exact, kind, depth)
        made = _made(f"({{}} {operator} {{}})", "bool", [left, other])
        return replace(made, sql=made.sql.without_duck()) if kind == "float" else made
    if shape == 3:
        name = draw(st.sampled_from(["AND", "OR"]))
        return _made(f"({{}} {name} {{}})", "bool", [condition(draw, exact, depth - 1) for _ in range(2)])
    if shape == 4:
        return _made("(NOT {})", "bool", [condition(draw, exact, depth - 1)])
    test = draw(st.sampled_from(["IS NULL", "IS NOT NULL"]))
    if shape == 5 and exact:
        return _made(f"({{}} {test})", "bool", [draw(st.sampled_from(exact))])
    text = value(draw, exact, "text", depth)
    return _made("({} IN ('a', 'b', ''))", "bool", [text])


def order(draw: st.DrawFn, values: Sequence[Value], first: Sequence[Value] = ()) -> Sql:
    """ORDER BY items that leave no two different rows equal: every exact value, some of them first."""
    rest = [one for one in of_kinds(exact_values(values), ORDERED) if one not in first]
    items = []
    for one in (*first, *rest):
        direction = draw(st.sampled_from(["ASC", "DESC"])) if one in first else "ASC"
        nulls = draw(st.sampled_from(["FIRST", "LAST"])) if one in first else "LAST"
        items.append(write(f"{{}} {direction} NULLS {nulls}", one.sql))
    return join_texts(", ", items)


# ---------------------------------------------------------------------------------------------- aggregates


def aggregate(draw: st.DrawFn, values: Sequence[Value]) -> Value:
    """An aggregate over the rows of a group."""
    made = _aggregate(draw, values)
    if draw(st.integers(0, 4)) == 4:
        passing = condition(draw, values, 1)
        made = _made("{} FILTER (WHERE {})", made.kind, [made, replace(passing, exact=made.exact)])
    return made


def _argument(draw: st.DrawFn, values: Sequence[Value], kinds: Sequence[Kind]) -> Value:
    found = of_kinds(values, kinds)
    kind = draw(st.sampled_from([one.kind for one in found])) if found else kinds[0]
    return value(draw, values, kind, draw(st.integers(0, 1)))


AGGREGATES = (
    *(
        "count(*)",
        "count",
        "distinct",
        "sum",
        "sum distinct",
        "avg",
        "min",
        "max",
        "stddev",
        "var_pop",
        "median",
    ),
    *(
        "array_agg",
        "array_agg distinct",
        "string_agg",
        "first_value",
        "last_value",
        "bool_and",
        "bool_or",
        "bit_or",
    ),
)


def _aggregate(draw: st.DrawFn, values: Sequence[Value]) -> Value:
    name = draw(st.sampled_from(AGGREGATES))
    exact = exact_values(values)
    if name == "count(*)":
        return Value(Sql.same("count(*)"), "int")
    if name == "count":
        return replace(_made("count({})", "int", [_argument(draw, values, ORDERED)]), exact=True)
    if name in ("sum", "avg", "stddev", "var_pop", "median"):
        number = _argument(draw, values, NUMBERS)
        kind: Kind = number.kind if name == "sum" else "float"
        close = number.exact and (name == "median" or (name in ("sum", "avg") and number.kind != "float"))
        return replace(_made(f"{name}({{}})", kind, [number]), exact=close)
    if name in ("min", "max"):
        one = _argument(draw, values, ORDERED[:4] + ORDERED[5:])
        return _made(f"{name}({{}})", one.kind, [one])
    if name == "distinct":
        return _made("count(DISTINCT {})", "int", [_argument(draw, exact, ORDERED)])
    if name == "sum distinct":
        return _made("sum(DISTINCT {})", "int", [_argument(draw, exact, ["int"])])
    if name in ("bool_and", "bool_or"):
        return _made(f"{name}({{}})", "bool", [_argument(draw, exact, ["bool"])])
    if name == "bit_or":
        return _made("bit_or(CAST({} AS BIGINT))", "int", [_argument(draw, exact, ["int"])])
    if name in ("first_value", "last_value"):
        one = (
            draw(st.sampled_from(of_kinds(exact, ORDERED)))
            if of_kinds(exact, ORDERED)
            else literal(draw, "int")
        )
        by = order(draw, values, [one] if draw(st.booleans()) else [])
        if not by.stream:
            return Value(Sql.same("count(*)"), "int")
        return Value(
            write(f"{name}({{}} ORDER BY {{}})", one.sql, by, duck=f"{name[:-6]}({{}} ORDER BY {{}})"),
            one.kind,
        )
    if name == "string_agg":
        text = _argument(draw, exact, ["text"])
        return _constant_order(_made("string_agg({}, ',' ORDER BY {})", "text", [text, text]), text)
    one = _argument(draw, exact, ["int", "dyadic", "text"])
    distinct = "DISTINCT " if name.endswith("distinct") else ""
    listed = _made(f"array_agg({distinct}{{}} ORDER BY {{}} NULLS LAST)", "list", [one, one])
    return _constant_order(listed, one)


def _constant_order(made: Value, by: Value) -> Value:
    """DuckDB does not order by constants."""
    return replace(made, sql=made.sql.without_duck()) if by.sql.stream in LITERALS[by.kind] else made
