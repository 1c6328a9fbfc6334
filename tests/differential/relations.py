"""Random queries: relations made of relations, each a view of the stream and a subquery of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tests.differential.data import SECOND, Column, Data
from tests.differential.expressions import (
    ORDERED,
    Sql,
    Value,
    aggregate,
    condition,
    exact_values,
    join_texts,
    of_kinds,
    order,
    references,
    value,
    write,
)


@dataclass(frozen=True)
class Window:
    """A window of event time; `slide` is the width of a tumble, and 0 for a session of this gap."""

    width: int
    slide: int

    @property
    def call(self) -> str:
        if self.slide == 0:
            return f"session({_interval(self.width)})"
        if self.slide == self.width:
            return f"tumble({_interval(self.width)})"
        return f"hop({_interval(self.slide)}, {_interval(self.width)})"


def _interval(length: int) -> str:
    return f"INTERVAL '{length // 1_000_000} milliseconds'"


def _half_seconds(width: int, slide: int) -> Window:
    return Window(width * SECOND // 2, slide * SECOND // 2)


FIXED = tuple(_half_seconds(*one) for one in ((10, 10), (3, 3), (20, 20), (12, 4), (20, 8), (7, 3), (5, 4)))
SESSIONS = tuple(_half_seconds(gap, 0) for gap in (2, 4, 7))


@dataclass(frozen=True)
class Relation:
    """The rows of a table or a view. In the batch, event time is the column `et` and a window two columns."""

    name: str
    columns: tuple[Column, ...]
    updating: bool = False
    window: Window | None = None
    """The windows that its rows belong to."""
    determined: bool = True
    """Whether rows with equal exact columns are equal."""

    @property
    def window_column(self) -> Column | None:
        return next((column for column in self.columns if column.kind == "window"), None)

    @property
    def values(self) -> list[Value]:
        return references(self.columns)


@dataclass
class Program:
    """Views on their way: each is called `q0`, `q1`, … and has columns with names of its own."""

    draw: st.DrawFn
    views: list[tuple[str, Sql]] = field(default_factory=list)
    names: int = 0

    def fresh(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def add(self, body: Sql, relation: Relation) -> Relation:
        made = replace(relation, name=f"q{len(self.views)}")
        self.views.append((made.name, body))
        return made


def table(data: Data) -> Relation:
    columns = tuple(Column(name, kind.kind) for name, kind in data.columns)
    return Relation(data.name, columns, updating=data.changes is not None)


def _as(item: Value, name: str) -> Sql:
    return write(f"{{}} AS {name}", item.sql)


def _pass(column: Column, table: str = "", name: str | None = None) -> Sql:
    """A column as it is, under a name; a window is two columns in the batch."""
    target, source = name or column.name, f"{table}{column.name}"
    plain = f"{source} AS {target}" if source != target else source
    if column.kind != "window":
        return Sql.same(plain)
    batch = ", ".join(f"{source}_{side} AS {target}_{side}" for side in "se")
    return Sql(plain, batch, batch)


def _select(items: Sequence[Sql], hidden: str, rest: Sql) -> Sql:
    """A SELECT; the batch has event time beside the items."""
    listed = join_texts(", ", items)
    return write("SELECT {} {}", listed, rest, batch=f"SELECT {{}}, {hidden} AS et {{}}")


def _from(relation: Relation) -> Sql:
    return Sql.same(f"FROM {relation.name}")


# ------------------------------------------------------------------------------------------------ row by row


def mapped(program: Program, source: Relation) -> Relation:
    """Some columns and expressions of the rows that pass a filter."""
    draw = program.draw
    kept = [column for column in source.columns if draw(st.integers(0, 3)) or column.kind == "window"]
    if source.window is not None and draw(st.integers(0, 5)) == 5:
        kept = [column for column in kept if column.kind != "window"]
    items = [_pass(column) for column in kept]
    columns = list(kept)
    for _ in range(draw(st.integers(0 if items else 1, 2))):
        kind = draw(st.sampled_from(ORDERED))
        made = value(draw, source.values, kind)
        columns.append(made.named(program.fresh()))
        items.append(_as(made, columns[-1].name))
    rest = _from(source)
    if draw(st.integers(0, 2)) == 2:
        rest = write("{} WHERE {}", rest, condition(draw, source.values, 2).sql)
    whole = {column.name for column in source.columns if column.exact} <= {column.name for column in kept}
    determined = all(column.exact for column in columns) or (source.determined and whole)
    return program.add(
        _select(items, "et", rest), replace(source, columns=tuple(columns), determined=determined)
    )


def _is_window(column: Column | Value) -> bool:
    """Whether rows that are equal in it are of one window."""
    return column.kind == "window" or column.part is not None


def distinct(program: Program, source: Relation) -> Relation:
    """Each different row once."""
    draw = program.draw
    kept = [c for c in source.columns if c.exact and c.kind != "list" and draw(st.booleans())] or [
        c for c in source.columns if c.exact and c.kind != "list"
    ][:1]
    if not kept:
        return mapped(program, source)
    windowed = source.window is not None and any(_is_window(column) for column in kept)
    listed = join_texts(", ", [_pass(column) for column in kept])
    hidden = "et" if windowed else "0"
    body = write(
        "SELECT DISTINCT {} {}", listed, _from(source), batch=f"SELECT DISTINCT {{}}, {hidden} AS et {{}}"
    )
    return program.add(
        body,
        Relation("", tuple(kept), updating=not windowed, window=source.window if windowed else None),
    )


# ------------------------------------------------------------------------------------------------ aggregates


def _keys(program: Program, source: Relation, values: Sequence[Value]) -> list[tuple[Column, Value]]:
    draw = program.draw
    keys: list[tuple[Column, Value]] = []
    usable = of_kinds(exact_values(values), ["int", "text", "bool", "dyadic", "time"])
    for _ in range(draw(st.integers(0, 2)) if usable else 0):
        one = draw(st.sampled_from(usable))
        if draw(st.integers(0, 3)) == 3:
            one = value(draw, exact_values(values), one.kind, 1)
        constant = not any(column.name in one.sql.stream for column in source.columns)
        if constant or any(one.sql == other.sql for _, other in keys):
            continue
        keys.append((one.named(program.fresh()), one))
    return keys


def grouped(program: Program, source: Relation, window: Window | None, *, again: bool = False) -> Relation:
    """Aggregates of groups by keys: in windows, in the windows the rows are in (`again`), or updating."""
    draw = program.draw
    values = list(source.values)
    keys = _keys(program, source, values)
    aggregates = [aggregate(draw, values) for _ in range(draw(st.integers(1, 4)))]
    # DataFusion refuses aggregates of one SELECT whose orders conflict.
    sorting = [one for one in aggregates if "ORDER BY" in one.sql.stream]
    aggregates = [one for one in aggregates if one not in sorting[1:]]
    items = [_as(one, column.name) for column, one in keys]
    columns = [column for column, _ in keys]
    groups = [one.sql for _, one in keys]
    rest = _from(source)
    if draw(st.integers(0, 3)) == 3:
        rest = write("{} WHERE {}", rest, condition(draw, values, 1).sql)
    hidden = "0"
    by_part = source.window is not None and any(one.part is not None for _, one in keys)
    if window is not None or again:
        held = source.window_column
        name = program.fresh()
        kind = source.window if window is None else window
        columns.append(Column(name, "window", part="window" if kind is not None and kind.slide else None))
        batch_group = "win_s, win_e"
        if again and held is not None and draw(st.booleans()):
            items.append(_pass(held, "", name))
            stream_group, batch_group = held.name, f"{held.name}_s, {held.name}_e"
            hidden = f"{held.name}_e - 1"
        else:
            used = source.window if window is None else window
            assert used is not None
            shown = f"win_s AS {name}_s, win_e AS {name}_e"
            items.append(Sql(f"{used.call} AS {name}", shown, shown))
            stream_group = draw(st.sampled_from([name, used.call]))
            rest = _windowed(rest, source, used, [one.sql for _, one in keys])
            hidden = "win_e - 1"
        groups.insert(draw(st.integers(0, len(groups))), Sql(stream_group, batch_group, batch_group))
    for one in aggregates:
        columns.append(Column(program.fresh(), one.kind, one.exact))
        items.append(_as(one, columns[-1].name))
    whole = [one for one in aggregates if one.exact and one.kind == "int"]
    if whole and draw(st.integers(0, 3)) == 3:
        sums = "CAST({} AS BIGINT) + CAST({} AS BIGINT)"
        both = Value(write(sums, whole[0].sql, whole[-1].sql), "int")
        columns.append(Column(program.fresh(), "int"))
        items.append(_as(both, columns[-1].name))
    if groups:
        rest = write("{} GROUP BY {}", rest, join_texts(", ", groups))
    having = None
    if draw(st.integers(0, 3)) == 3:
        over = exact_values([*aggregates, *(one for _, one in keys)])
        having = condition(draw, over, 0).sql
    if having is not None:
        rest = write("{} HAVING {}", rest, having)
    held_window = source.window if again else window
    if window is None and not again and by_part:
        held_window, hidden = source.window, "min(et)"
    elif window is not None and window != source.window:
        columns = [
            replace(column, part=column.part if column.kind == "window" else None) for column in columns
        ]
    return program.add(
        _select(items, hidden, rest),
        Relation("", tuple(columns), updating=held_window is None, window=held_window),
    )


def _windowed(rest: Sql, source: Relation, window: Window, keys: Sequence[Sql]) -> Sql:
    """FROM and WHERE of the batch with the windows of each row beside it, in `win_s` and `win_e`."""
    _, keyword, where = rest.batch.partition(" WHERE ")
    duck = None if rest.duck is None else rest.duck.partition(" WHERE ")[2]
    passing = Sql(rest.stream, f"{keyword}{where}", None if duck is None else f"{keyword}{duck}")
    if source.window == window and window.slide:
        inner = f"SELECT *, et + 1 - {window.width} AS win_s, et + 1 AS win_e FROM {source.name} {{}}"
        parts: list[Sql] = [passing]
    elif window.slide:
        offsets = ", ".join(f"({n})" for n in range(-(-window.width // window.slide)))
        slide = window.slide
        start = f"et - ((et % {slide}) + {slide}) % {slide} - CAST(n AS BIGINT) * {slide}"
        inner = (
            f"SELECT * FROM (SELECT *, {start} AS win_s, {start} + {window.width} AS win_e "
            f"FROM {source.name} CROSS JOIN (VALUES {offsets}) AS hops (n) {{}}) AS hopped WHERE win_e > et"
        )
        parts = [passing]
    else:
        by = join_texts(", ", keys)
        partition = "PARTITION BY {} " if keys else "{}"
        over = f"OVER ({partition}ORDER BY et)"
        gap = window.width
        fresh = f"CASE WHEN et - lag(et) {over} < {gap} THEN 0 ELSE 1 END AS fresh"
        first = f"SELECT *, {fresh} FROM {source.name} {{}}"
        second = f"SELECT *, sum(fresh) {over} AS run FROM ({first}) AS marked"
        again = "PARTITION BY {}, run" if keys else "PARTITION BY {}run"
        ends = f"min(et) OVER ({again}) AS win_s, max(et) OVER ({again}) + {gap} AS win_e"
        inner = f"SELECT *, {ends} FROM ({second}) AS runs"
        parts = [by, by, by, by, passing]
    batch = write(f"FROM ({inner}) AS windows", *parts)
    return Sql(rest.stream, batch.batch, batch.duck)


# ----------------------------------------------------------------------------------------------------- joins

KINDS = ("INNER", "LEFT", "RIGHT", "FULL")


def joined(program: Program, left: Relation, right: Relation) -> Relation:
    """Pairs of rows: in windows if both sides have the same, and else with whatever comes."""
    draw = program.draw
    windowed = left.window is not None and left.window == right.window and left.window.slide > 0
    sides = [references(side.columns, f"{alias}.") for side, alias in ((left, "l"), (right, "r"))]
    pairs = [
        (a, b)
        for a in of_kinds(exact_values(sides[0]), ["int", "text", "bool", "dyadic", "time"])
        for b in of_kinds(exact_values(sides[1]), [a.kind])
    ]
    conditions: list[Sql] = []
    for _ in range(draw(st.integers(0 if windowed else 1, 2)) if pairs else 0):
        a, b = draw(st.sampled_from(pairs))
        conditions.append(write("{} = {}", a.sql, b.sql))
    if not windowed and not conditions:
        return mapped(program, left)
    if draw(st.integers(0, 3)) == 3:
        conditions.append(condition(draw, [*sides[0], *sides[1]], 1).sql)
    on = join_texts(" AND ", conditions)
    if windowed:
        said = _same_window(draw, left, right)
        implied = join_texts(" AND ", [Sql.same("l.et = r.et"), *conditions])
        on = replace(implied, stream=" AND ".join(text for text in (said, on.stream) if text))
        if not on.stream:
            return mapped(program, left)
    kind = draw(st.sampled_from(KINDS))
    columns, items = _both_sides(program, left, right, kind, windowed=windowed)
    rest = write(f"FROM {left.name} AS l {kind} JOIN {right.name} AS r ON {{}}", on)
    made = Relation(
        "",
        columns,
        updating=left.updating or right.updating or (not windowed and kind != "INNER"),
        window=left.window if windowed else None,
        determined=all(column.exact for column in columns),
    )
    return program.add(_select(items, "greatest(l.et, r.et)", rest), made)


def _same_window(draw: st.DrawFn, left: Relation, right: Relation) -> str:
    """What a join says about its windows; that rows of one window meet is understood anyway."""
    held = (left.window_column, right.window_column)
    if held[0] is None or held[1] is None:
        return ""
    end = draw(st.sampled_from(["", "", ".start"]))
    return f"l.{held[0].name}{end} = r.{held[1].name}{end}"


def _both_sides(
    program: Program, left: Relation, right: Relation, kind: str, *, windowed: bool
) -> tuple[tuple[Column, ...], list[Sql]]:
    """Columns of both sides; a window that may be null is no window, and one is enough."""
    columns: list[Column] = []
    items: list[Sql] = []
    for side, alias, outer in ((left, "l", "RIGHT"), (right, "r", "LEFT")):
        lost = kind in ("FULL", outer)
        for column in side.columns:
            if column.kind == "window":
                if lost or any(one.kind == "window" for one in columns):
                    continue
            elif not program.draw(st.integers(0, 3)):
                continue
            part = column.part if windowed and not lost else None
            columns.append(replace(column, name=program.fresh(), part=part))
            items.append(_pass(column, f"{alias}.", columns[-1].name))
    if not items:
        columns.append(Column(program.fresh(), "int"))
        items.append(Sql.same(f"1 AS {columns[-1].name}"))
    return tuple(columns), items


def united(program: Program, left: Relation, right: Relation) -> Relation:
    """The rows of both, as many columns as can be put under each other."""
    draw = program.draw
    rest = list(right.columns)
    pairs: list[tuple[Column, Column]] = []
    for column in left.columns:
        other = next((one for one in rest if one.kind == column.kind), None)
        if other is not None and draw(st.integers(0, 4)):
            rest.remove(other)
            pairs.append((column, other))
    if not pairs:
        return mapped(program, left)
    names = [program.fresh() for _ in pairs]
    sides = [
        _select(
            [_pass(pair[n], "", name) for pair, name in zip(pairs, names, strict=True)], "et", _from(side)
        )
        for n, side in enumerate((left, right))
    ]
    same = (
        left.window is not None
        and left.window == right.window
        and all(_is_window(a) == _is_window(b) and a.part == b.part for a, b in pairs)
    )
    columns = tuple(
        Column(name, a.kind, a.exact and b.exact, a.part if same else None)
        for name, (a, b) in zip(names, pairs, strict=True)
    )
    updating = left.updating or right.updating
    return program.add(
        write("{} UNION ALL {}", *sides),
        Relation(
            "",
            columns,
            updating=updating,
            window=left.window if same and not updating else None,
            determined=all(column.exact for column in columns),
        ),
    )


# ------------------------------------------------------------------------------------------ window functions


def ranked(program: Program, source: Relation) -> Relation:
    """Rows with window functions beside them, in their windows or over all that come; perhaps the first n."""
    draw = program.draw
    if not source.determined:
        return mapped(program, source)
    usable: list[Value] = of_kinds(exact_values(source.values), ORDERED)
    held = source.window_column
    windowed = False
    partition: list[Sql] = []
    if source.window is not None and held is not None and draw(st.integers(0, 3)):
        windowed = True
        partition.append(Sql(held.name, f"{held.name}_s, {held.name}_e", f"{held.name}_s, {held.name}_e"))
    keys = of_kinds(usable, ["int", "text", "bool", "dyadic", "time"])
    chosen = draw(st.lists(st.sampled_from(keys), max_size=1)) if keys else []
    for key in chosen:
        partition.append(key.sql)
        windowed = windowed or (source.window is not None and key.part is not None)
    by = write("PARTITION BY {}", join_texts(", ", partition)) if partition else Sql.same("")
    items = [_pass(column) for column in source.columns]
    columns = list(source.columns)
    if not usable:
        return mapped(program, source)
    calls = [_over(draw, source, usable, by) for _ in range(draw(st.integers(1, 2)))]
    for call in calls:
        columns.append(Column(program.fresh(), call.kind, call.exact))
        items.append(_as(call, columns[-1].name))
    body = _select(items, "et", _from(source))
    if draw(st.booleans()):
        number = program.fresh()
        ordered = order(draw, source.values, [draw(st.sampled_from(usable))])
        call_sql = write(f"row_number() OVER ({{}} ORDER BY {{}}) AS {number}", by, ordered)
        columns.append(Column(number, "int"))
        limit = draw(st.integers(1, 3))
        body = write(
            f"SELECT * FROM ({{}}) AS ranked WHERE {number} <= {limit}",
            _select([*items, call_sql], "et", _from(source)),
        )
    return program.add(
        body,
        Relation("", tuple(columns), updating=not windowed, window=source.window if windowed else None),
    )


def _over(draw: st.DrawFn, source: Relation, usable: Sequence[Value], by: Sql) -> Value:
    first = draw(st.sampled_from(usable))
    total = order(draw, source.values, [first])
    name = draw(st.sampled_from(["row_number", "rank", "dense_rank", "lag", "lead", "sum", "count", "max"]))
    if name in ("rank", "dense_rank"):
        return Value(write(f"{name}() OVER ({{}} ORDER BY {{}} NULLS LAST)", by, first.sql), "int")
    if name == "row_number":
        return Value(write("row_number() OVER ({} ORDER BY {})", by, total), "int")
    if name in ("lag", "lead"):
        return Value(write(f"{name}({{}}) OVER ({{}} ORDER BY {{}})", first.sql, by, total), first.kind)
    if name == "sum":
        number = value(draw, exact_values(source.values), "int", 0)
        frame = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        return Value(write(f"sum({{}}) OVER ({{}} ORDER BY {{}} {frame})", number.sql, by, total), "int")
    if name == "count":
        return Value(write("count(*) OVER ({})", by), "int")
    if first.kind == "bool":
        return Value(write("count({}) OVER ({})", first.sql, by), "int")
    return Value(write("max({}) OVER ({})", first.sql, by), first.kind)


def limited(program: Program, source: Relation) -> Relation:
    """The first rows of an order, of each window if there are windows."""
    draw = program.draw
    usable = of_kinds(exact_values(source.values), ORDERED)
    if not source.determined or not usable or any(column.kind == "list" for column in source.columns):
        return mapped(program, source)
    by = order(draw, source.values, [draw(st.sampled_from(usable))])
    count, skip = draw(st.integers(1, 4)), draw(st.sampled_from([0, 0, 2]))
    partition = "PARTITION BY et " if source.window is not None else ""
    stream = join_texts(", ", [_pass(column) for column in source.columns])
    offset = f" OFFSET {skip}" if skip else ""
    body = write(
        f"SELECT {{}} FROM {source.name} ORDER BY {{}} LIMIT {count}{offset}",
        stream,
        by,
        batch=f"SELECT {{}}, et FROM (SELECT *, row_number() OVER ({partition}ORDER BY {{}}) AS place "
        f"FROM {source.name}) AS placed WHERE place > {skip} AND place <= {skip + count}",
    )
    return program.add(
        body,
        Relation("", source.columns, updating=source.window is None, window=source.window),
    )


Step = Callable[[Program, Relation], Relation]


def windowed(program: Program, source: Relation) -> Relation:
    """An aggregate in windows, in those that the rows are in already or in new ones."""
    draw = program.draw
    if source.updating:
        return grouped(program, source, None)
    if source.window is not None and source.window_column is not None and draw(st.booleans()):
        return grouped(program, source, None, again=True)
    return grouped(program, source, draw(st.sampled_from([*FIXED, *SESSIONS])))


def updating(program: Program, source: Relation) -> Relation:
    """An aggregate without windows: its results change."""
    return grouped(program, source, None)
