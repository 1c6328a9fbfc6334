"""Window functions in FROM, as Flink has them: `TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE))`.

A query over one that groups by `window_start` and `window_end` becomes a query around one that groups by
`tumble(…)`, `hop(…)`, `cumulate(…)` or `session(…)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.base.spans import Span
from headrace.sql.parse.dialect import HeadraceDialect, copy_position, to_sql
from headrace.sql.problems import fail, sql_error

EVENT_TIME = "event_time"
"""The key in a table's `meta` under which the column of DESCRIPTOR stands."""
WINDOW_TIME = "window_time"
"""The key in the `meta` of a call that adds this column too, as Flink's do."""
_WINDOW = "_window"
_COLUMNS = ("window_start", "window_end", "window_time")
_ARGUMENTS = {
    "TUMBLE": ("SIZE",),
    "HOP": ("SLIDE", "SIZE"),
    "CUMULATE": ("STEP", "SIZE"),
    "SESSION": ("GAP",),
}
_GROUPED = "write SELECT window_start, …, count(*) … GROUP BY window_start, window_end, …"
_AROUND = "write it in a query around this one"

_OUTSIDE = {
    "distinct": "DISTINCT",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
}

SpanOf = Callable[[Token], Span]


@dataclass(frozen=True)
class WindowFunction:
    """One call of a window function in FROM."""

    name: str
    start: Token
    intervals: Sequence[exp.Expr]
    time_column: Token
    partitions: Sequence[str]


def take_window_functions(
    tokens: Sequence[Token], span: SpanOf, *, closes: bool = False
) -> tuple[list[Token], dict[int, WindowFunction]]:
    """Put the name of its table in the place of each window function; they are found by where that starts.

    With EMIT ON WINDOW CLOSE, `tumble(t, ts, INTERVAL …)` is one too; otherwise it only adds columns.
    """
    left: list[Token] = []
    calls: dict[int, WindowFunction] = {}
    at = 0
    while at < len(tokens):
        texts = [token.text.upper() for token in tokens[at : at + 4]]
        wrapped = texts[:2] == ["TABLE", "("] and texts[3:] == ["("] and _is_window(texts[2])
        bare = _is_window(texts[0]) and texts[1:2] == ["("] and texts[2:3] in (["TABLE"], ["DATA"])
        bare = bare or (closes and _is_window(texts[0]) and texts[1:2] == ["("] and texts[3:] == [","])
        if not wrapped and not bare:
            left.append(tokens[at])
            at += 1
            continue
        name = at + (2 if wrapped else 0)
        end = _closing(tokens, name + 1, span)
        table, call = _read(tokens[name], tokens[name + 2 : end], span)
        calls[table.start] = call
        left.append(table)
        at = end + 1
        if wrapped:
            if at >= len(tokens) or tokens[at].text != ")":
                fail("TABLE( is never closed", span(tokens[name]), "close it with )")
            at += 1
    return left, calls


_REFUSED = {
    "MATCH_RECOGNIZE (": (
        "MATCH_RECOGNIZE is not supported",
        "compare rows with lag(…) OVER (PARTITION BY … ORDER BY …), or write an operator in Python",
    ),
}


EMIT = "emit"
"""The key in a query's `meta` under which its EMIT clause stands."""
_EMIT = {"CHANGES": "changes", "FINAL": "close", "ON WINDOW CLOSE": "close"}


def take_emit(tokens: Sequence[Token], span: SpanOf) -> tuple[list[Token], exp.Expr | None]:
    """The tokens of a query without the EMIT at its end, and what it says."""
    for at in range(len(tokens) - 1, 0, -1):
        if tokens[at].text.upper() != "EMIT" or len(tokens) - at > _LONGEST_EMIT:
            continue
        words = " ".join(token.text.upper() for token in tokens[at + 1 :])
        if words not in _EMIT:
            if words.startswith(("AFTER", "CHANGES", "ON ", "FINAL")):
                hint = "write EMIT CHANGES or EMIT ON WINDOW CLOSE"
                fail("windows do not fire early or late", span(tokens[at]), hint)
            continue
        first, last = tokens[at], tokens[-1]
        emit = exp.Var(this=_EMIT[words])
        emit.meta.update(line=first.line, col=first.col, start=first.start, end=last.end)
        return list(tokens[:at]), emit
    return list(tokens), None


_LONGEST_EMIT = 8
"""The tokens of the longest EMIT that is recognised."""


def refuse_unsupported(tokens: Sequence[Token], span: SpanOf) -> None:
    """Raise an error for syntax of other engines that is recognised, and has no meaning here yet."""
    for at, token in enumerate(tokens):
        rest = " ".join(other.text.upper() for other in tokens[at : at + 4])
        for words, (message, hint) in _REFUSED.items():
            if f"{rest} ".startswith(f"{words} "):
                fail(message, span(token), hint)


def _is_window(word: str) -> bool:
    return word in _ARGUMENTS


def _closing(tokens: Sequence[Token], opening: int, span: SpanOf) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    raise sql_error("this bracket is never closed", span(tokens[opening]), "close it with )")


def _read(name: Token, inside: Sequence[Token], span: SpanOf) -> tuple[Token, WindowFunction]:
    """The table of a call, and the call."""
    kind = name.text.upper()
    names = ("DATA", "TIMECOL", *_ARGUMENTS[kind])
    hint = f"write {kind}(TABLE t, DESCRIPTOR(ts){', INTERVAL …' * len(_ARGUMENTS[kind])})"
    arguments: dict[str, Sequence[Token]] = {}
    for position, argument in enumerate(_split(inside)):
        word = argument[0].text.upper() if argument else ""
        named = len(argument) > 1 and argument[1].text == "=>"
        key = word if named else names[position] if position < len(names) else ""
        if key not in names or key in arguments:
            fail(f"{kind} has no such argument", span(argument[0] if argument else name), hint)
        arguments[key] = argument[2:] if named else argument
    for key in names:
        if not arguments.get(key):
            fail(f"{kind} has no {key}", span(name), hint)
    table, partitions = _read_table(arguments["DATA"], kind, span, hint)
    descriptor = arguments["TIMECOL"]
    if len(descriptor) == 1 and name.text.upper() != "SESSION" and len(arguments["DATA"]) == 1:
        descriptor = [name, name, *descriptor, name]  # RisingWave's form
    elif [token.text.upper() for token in descriptor[:2]] != ["DESCRIPTOR", "("] or len(descriptor) != 4:
        fail("the time of a window is DESCRIPTOR(column)", span(descriptor[0]), hint)
    intervals = [_read_interval(arguments[key], span, hint) for key in names[2:]]
    return table, WindowFunction(kind.lower(), name, intervals, descriptor[2], partitions)


def _read_table(argument: Sequence[Token], kind: str, span: SpanOf, hint: str) -> tuple[Token, Sequence[str]]:
    if len(argument) == 1 and kind != "SESSION":
        return argument[0], ()
    if argument[0].text.upper() != "TABLE" or len(argument) < 2:
        fail("the rows of a window function are TABLE name", span(argument[0]), hint)
    table, rest = argument[1], list(argument[2:])
    if not rest:
        return table, ()
    words = " ".join(token.text.upper() for token in rest[:2])
    if kind != "SESSION" or not words.startswith("PARTITION BY"):
        fail(f"`{rest[0].text}` is not expected here", span(rest[0]), hint)
    keys = rest[1:] if rest[0].text.upper() == "PARTITION BY" else rest[2:]
    names = [token for token in keys if token.text not in (",", "(", ")")]
    return table, [token.text.lower() for token in names]


def _read_interval(argument: Sequence[Token], span: SpanOf, hint: str) -> exp.Expr:
    if argument[0].text.upper() != "INTERVAL" or len(argument) not in (2, 3):
        fail("an INTERVAL is expected here", span(argument[0]), hint)
    text = " ".join(token.text for token in argument[1:]).replace("'", "''")
    interval: exp.Expr = HeadraceDialect().parse(f"SELECT INTERVAL '{text}'")[0].expressions[0]  # type: ignore[union-attr]
    first, last = argument[0], argument[-1]
    for node in interval.walk():
        node.meta.update(line=first.line, col=first.col, start=first.start, end=last.end)
    return interval


def _split(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """The arguments between commas; those of PARTITION BY belong to the table."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for index, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        partitioned = any("PARTITION" in before.text.upper() for before in parts[-1])
        following = tokens[index + 1].text.upper() if index + 1 < len(tokens) else ""
        ends = following in ("DESCRIPTOR", "TIMECOL", "GAP") or not partitioned
        if token.text == "," and depth == 0 and ends:
            parts.append([])
        else:
            parts[-1].append(token)
    return list(parts)


def rewrite_window_functions(query: exp.Expr, calls: Mapping[int, WindowFunction], span: SpanOf) -> exp.Expr:
    """The query with each SELECT over a window function in terms of `tumble`, `hop` and the like."""
    tables = [
        (table, calls[table.this.meta["start"]])
        for table in query.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier) and table.this.meta.get("start") in calls
    ]
    for table, call in tables:
        select = table.find_ancestor(exp.Select)
        if call.name in ("tumble", "hop") and select is not None and not _groups_by_window(select):
            table.set("this", _rows_call(call, table))
            continue
        if select is None or table.parent is not select.args["from_"] or select.args.get("joins"):
            hint = "group by the window in a query of its own, and join the results"
            fail(f"{call.name.upper()} stands alone in FROM", span(call.start), hint)
        table.meta[EVENT_TIME] = call.time_column
        outer = _rewrite(select, call, span)
        query = outer if select is query else query
        if select.parent is not None and select is not query:
            select.replace(outer)
    return query


def _groups_by_window(select: exp.Select) -> bool:
    """Whether a SELECT groups by the window; otherwise a window function only adds columns to the rows."""
    group = select.args.get("group")
    if group is None:
        return False
    keys = [_item(key, select) for key in group.expressions]
    return {"window_start", "window_end"} <= {key.name.lower() for key in keys if _is_window_column(key)}


def _rows_call(call: WindowFunction, table: exp.Table) -> exp.Anonymous:
    """`tumble(t, ts, INTERVAL …)`, which adds the columns of the window to the rows of a table."""
    column = exp.column(call.time_column.text)
    intervals = [interval.copy() for interval in call.intervals]
    rows = exp.Anonymous(this=call.name, expressions=[exp.column(table.this.copy()), column, *intervals])
    copy_position(table.this, rows)
    rows.meta[WINDOW_TIME] = True
    return rows


_BOUNDS = {"start": "window_start", "end": "window_end", "rowtime": "window_time"}


def rewrite_group_windows(query: exp.Expr) -> tuple[exp.Expr, dict[int, WindowFunction]]:
    """Flink's older `GROUP BY TUMBLE(ts, INTERVAL …)`, with TUMBLE_START(…), as window functions in FROM."""
    calls: dict[int, WindowFunction] = {}
    for select in list(query.find_all(exp.Select)):
        group, tables = select.args.get("group"), select.args.get("from_")
        if group is None:
            continue
        windows = [key for key in group.expressions if _is_group_window(key)]
        table = None if tables is None else tables.this
        if len(windows) != 1 or select.args.get("joins") or not isinstance(table, exp.Table):
            continue
        if not isinstance(table.this, exp.Identifier):
            continue
        window, name = windows[0], windows[0].name.lower()
        column, *intervals = window.expressions
        others = [key for key in group.expressions if key is not window]
        keys = [key.name.lower() for key in (_item(key, select) for key in others)]
        calls[table.this.meta["start"]] = WindowFunction(
            name, _token(column.this), intervals, _token(column.this), keys
        )
        group.set("expressions", [exp.column("window_start"), exp.column("window_end"), *others])
        for node in (*select.expressions, select.args.get("having")):
            for bound in [] if node is None else list(node.find_all(exp.Anonymous)):
                prefix, _, suffix = bound.name.lower().rpartition("_")
                if prefix == name and suffix in _BOUNDS:
                    reference: exp.Expr = exp.column(_BOUNDS[suffix])
                    copy_position(column.this, reference)
                    if bound.parent is select:
                        reference = exp.alias_(reference, bound.name.lower())
                    bound.replace(reference)
    return query, calls


def _is_group_window(key: exp.Expr) -> bool:
    return (
        isinstance(key, exp.Anonymous)
        and key.name.upper() in ("TUMBLE", "HOP", "SESSION")
        and len(key.expressions) == len(_ARGUMENTS[key.name.upper()]) + 1
        and isinstance(key.expressions[0], exp.Column)
    )


def _token(name: exp.Expr) -> Token:
    """The token of a name."""
    meta = name.meta
    return Token(TokenType.VAR, name.name, meta["line"], meta["col"], meta["start"], meta["end"], [])


def _rewrite(select: exp.Select, call: WindowFunction, span: SpanOf) -> exp.Select:
    at = span(call.start)
    inner = select.copy()
    extra = [clause for key, clause in _OUTSIDE.items() if inner.args.get(key)]
    if extra:
        fail(f"{extra[0]} cannot stand beside {call.name.upper()} in FROM", at, _AROUND)
    for key in ("where", "having"):
        clause = inner.args.get(key)
        if clause is not None and _window_columns(clause):
            fail(f"{key.upper()} cannot read the columns of the window", at, _AROUND)
    group = inner.args.get("group")
    keys = [_item(key, inner) for key in (group.expressions if group is not None else ())]
    named = {key.name.lower() for key in keys if _is_window_column(key)}
    if group is None or not {"window_start", "window_end"} <= named:
        fail(f"a query over {call.name.upper()} groups by window_start and window_end", at, _GROUPED)
    others = [key for key in keys if not _is_window_column(key)]
    if call.name == "session" and sorted(call.partitions) != sorted(key.name.lower() for key in others):
        hint = "name the same columns in PARTITION BY and, besides window_start and window_end, in GROUP BY"
        fail("the sessions of PARTITION BY are not those of GROUP BY", at, hint)
    inside, outside = _items(inner, at)
    window = exp.Anonymous(this=call.name, expressions=[interval.copy() for interval in call.intervals])
    window.meta.update(call.intervals[0].meta)
    inner.set("expressions", [exp.alias_(window, _WINDOW, quoted=True), *inside])
    group.set("expressions", [exp.column(_WINDOW, quoted=True), *others])
    outer = exp.Select(expressions=outside, from_=exp.From(this=exp.Subquery(this=inner)))
    if inner.args.get("with_") is not None:
        outer.set("with_", inner.args["with_"].pop())
    copy_position(select, outer)
    return outer


def _items(inner: exp.Select, at: Span) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The columns of the inner query, and those of the one around it."""
    inside: list[exp.Expr] = []
    outside: list[exp.Expr] = []
    for number, item in enumerate(inner.expressions):
        value = item.unalias()
        if value.is_star:
            fail("* cannot stand beside a window function in FROM", at, "name the columns")
        name = item.alias or (value.name if isinstance(value, exp.Column) else to_sql(value))
        if not _window_columns(value):
            hidden = item.alias or f"_c{number}"
            inside.append(exp.alias_(value.copy(), hidden, quoted=True))
            outer: exp.Expr = exp.column(hidden, quoted=True)
        else:
            if any(not _is_window_column(column) for column in value.find_all(exp.Column)):
                fail("columns of the window cannot be mixed with others in one expression", at, _AROUND)
            outer = value.copy().transform(_bound)
        copy_position(item, outer)
        outside.append(exp.alias_(outer, name, quoted=True))
    return inside, outside


def _bound(node: exp.Expr) -> exp.Expr:
    """A column of the window as a field of the column with the windows."""
    if not _is_window_column(node):
        return node
    end = node.name.lower() != "window_start"
    bound = exp.column("end" if end else "start", table=_WINDOW, quoted=True)
    copy_position(node, bound)
    if node.name.lower() != "window_time":
        return bound
    millisecond = HeadraceDialect().parse("SELECT INTERVAL '1 millisecond'")[0].expressions[0]  # type: ignore[union-attr]
    return exp.Paren(this=exp.Sub(this=bound, expression=millisecond))


def _item(key: exp.Expr, select: exp.Select) -> exp.Expr:
    """A key of GROUP BY; a number stands for an item of the SELECT."""
    if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(select.expressions):
        item: exp.Expr = select.expressions[int(key.name) - 1]
        return item.unalias().copy()
    return key.copy()


def _window_columns(node: exp.Expr) -> list[exp.Expr]:
    return [column for column in node.find_all(exp.Column) if _is_window_column(column)]


def _is_window_column(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.name.lower() in _COLUMNS
