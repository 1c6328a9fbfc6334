"""Tables that statements insert into, update and delete from: the engine of sqllogictest suites.

A table is the history of its changes. Each query runs as a pipeline over the whole history, uninterrupted,
and stopped and resumed with another parallelism: both must give the same rows.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pydantic import ConfigDict, Field

from headrace.api.pipeline import Pipeline
from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import InternalError, UserError, suggest
from headrace.base.options import Options as DeclaredOptions
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.connectors.base import Connector, Delivery
from headrace.connectors.memory import MemorySource
from headrace.formats.options import Columns
from headrace.functions.documents import parse
from headrace.functions.postgres.json import layout
from headrace.jobs.progress import RunResult
from headrace.model.fragments import Function
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split
from headrace.model.registry import registry
from headrace.sql.compile import Preview
from headrace.sql.parse.batch_statements import typed_values, without_order
from headrace.sql.parse.statements import parse_statements
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.types import column_lines, sql_type
from headrace.testing.in_process import ManualClock, run_in_process
from headrace.testing.sqllogictest import Row
from headrace.testing.suite_statements import (
    ChangeText,
    read_create_table,
    read_create_view,
    read_delete,
    read_drop,
    read_insert,
    read_update,
)

CONNECTOR = "changelog"
_ROW = "_row"
_SECOND = 1_000_000_000
_RESULT = "rows"


class ChangelogSource(Connector, SourceOperator):
    """Reads the changes of a table from an Arrow file, in their order, once; then it ends."""

    deliveries = (Delivery("exactly once", "the position in the file is in the checkpoint"),)

    class Options(DeclaredOptions):
        """The options of the changelog source."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        path: str = Field(min_length=1, description="The Arrow file.")
        columns: Columns | None = Field(None, alias="schema", description="The columns of the table.")

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        with pa.OSFile(self.options.path) as file:
            self._rows = MemorySource(pa.ipc.open_file(file).read_all())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    @classmethod
    def is_updating(cls, options: Mapping[str, Any]) -> bool:  # noqa: ARG003 - it always is
        """Rows are taken back."""
        return True

    def initial_offset(self, *, time: float) -> Offset:
        """Return the first change."""
        return self._rows.initial_offset(time=time)

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the change after `limit.rows` others."""
        return self._rows.latest_offset(start, limit, parallelism=parallelism)

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return one split: changes keep their order."""
        return self._rows.splits(start, end, parallelism=1)

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Emit the changes of one split."""
        return self._rows.run(ctx, collector)

    def is_finished(self, offset: Offset) -> bool:
        """Whether the last change is read."""
        return self._rows.is_finished(offset)


@dataclass
class _Table:
    """A table: its definition, its rows now, and every change."""

    name: str
    columns: str
    """Its columns as they are written."""
    schema: pa.Schema
    key: Sequence[str]
    """Its primary key; without one, rows have a number that queries do not see."""
    rows: pa.Table
    """The rows as they are now, each with its number in the column `_row`."""
    changes: list[tuple[bool, pa.Table]] = field(default_factory=list)
    inserted: int = 0
    jsonb: Sequence[str] = ()
    """The columns of type JSONB."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The SQL of the default of a column."""

    def laid_out(self, rows: pa.Table) -> pa.Table:
        """Rows with the documents of JSONB columns as PostgreSQL writes them."""
        for name in self.jsonb:
            texts = rows.column(name).to_pylist()
            written = [None if text is None else layout(parse(text)) for text in texts]
            rows = rows.set_column(
                rows.schema.get_field_index(name), rows.schema.field(name), pa.array(written, pa.string())
            )
        return rows

    def insert(self, rows: pa.Table) -> None:
        """Add rows, each with a new number."""
        numbers = range(self.inserted, self.inserted + rows.num_rows)
        self.apply([(False, rows.append_column(_ROW, pa.array(numbers, pa.int64())))])
        self.inserted += rows.num_rows

    def apply(self, changes: Sequence[tuple[bool, pa.Table]]) -> None:
        """Take rows back and add rows, in order; refuse two rows with the same key."""
        changes = [(retracts, rows if retracts else self.laid_out(rows)) for retracts, rows in changes]
        gone = {number for retracts, rows in changes if retracts for number in rows.column(_ROW).to_pylist()}
        remaining = self.rows.filter(
            pa.array([n not in gone for n in self.rows.column(_ROW).to_pylist()], pa.bool_())
        )
        rows = pa.concat_tables([remaining, *(rows for retracts, rows in changes if not retracts)])
        if self.key:
            keys = Counter(tuple(row.values()) for row in rows.select(self.key).to_pylist())
            if keys and max(keys.values()) > 1:
                raise UserError(f"two rows have the primary key {keys.most_common(1)[0][0]}")
        self.rows = rows
        self.changes += [(retracts, part) for retracts, part in changes if part.num_rows]

    def definition(self, path: Path, *, numbered: bool) -> str:
        """The statements that define the table over the file with its log; `numbered`: with `_row`."""
        options = f"WITH (connector = '{CONNECTOR}', type = 'source', path = '{path}')"
        if self.key:
            number = f", {_ROW} BIGINT NOT NULL" if numbered else ""
            return f"CREATE TABLE {_quoted(self.name)} ({self.columns}{number}) {options}"
        hidden = self.name if numbered else f"{self.name}__changes"
        listed = ", ".join(_quoted(name) for name in self.schema.names)
        table = (
            f"CREATE TABLE {_quoted(hidden)} ({self.columns}, {_ROW} BIGINT NOT NULL PRIMARY KEY) {options}"
        )
        if numbered:
            return table
        view = f"CREATE VIEW {_quoted(self.name)} AS SELECT {listed} FROM {_quoted(hidden)}"  # noqa: S608 - names
        return f"{table};\n{view}"

    def log(self, *, numbered: bool) -> pa.Table:
        """The changes with `_retract`, each a second after the one before."""
        tables = [
            rows.append_column(RETRACT, pa.array([retracts] * rows.num_rows, pa.bool_()))
            for retracts, rows in self.changes
        ]
        empty = self.rows.schema.empty_table().append_column(RETRACT, pa.array([], pa.bool_()))
        log = pa.concat_tables([empty, *tables])
        if self.key and not numbered:
            log = log.drop_columns([_ROW])
        times = pa.array(range(0, log.num_rows * _SECOND, _SECOND), pa.int64())
        return log.append_column(TIMESTAMP, times.view(pa.timestamp("ns")))


class ChangelogEngine:
    """Runs the statements and queries of a suite; a context manager that owns the files of its tables."""

    name = "headrace"

    def __init__(self, *, functions: Sequence[Function] = ()) -> None:
        registry.register(CONNECTOR, ChangelogSource, role="source")
        self._functions = functions
        self._tables: dict[str, _Table] = {}
        self._views: dict[str, str] = {}
        self._settings: list[str] = []
        self._opened = ExitStack()
        self._folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="headrace-slt-")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    # ------------------------------------------------------------------------------------- statements

    def execute(self, sql: str) -> int | None:
        """Define something, change the rows of a table, or set a setting.

        Returns how many rows are changed by INSERT, UPDATE and DELETE.
        """
        text = sql.strip().removesuffix(";").strip()
        words = re.findall(r"[A-Za-z_]+", text)[:3]
        start = " ".join(words).upper()
        if re.match(r"(CREATE (UNIQUE )?INDEX|FLUSH|BEGIN|START TRANSACTION|COMMIT)\b", start):
            return None  # an index changes no rows, and a query is computed over all changes so far
        for pattern, run in self._statements.items():
            if re.match(pattern, start):
                return run(text)
        raise UserError(
            f"`{start}` is not a statement of a suite",
            hint="statements are CREATE TABLE, CREATE INDEX, CREATE [MATERIALIZED] VIEW, DROP, SET, INSERT, "
            "UPDATE, DELETE, TRUNCATE, BEGIN, COMMIT and FLUSH",
        )

    @property
    def _statements(self) -> Mapping[str, Callable[[str], int | None]]:
        """What a statement does, by how it begins."""
        return {
            r"CREATE TABLE\b": self._create_table,
            r"CREATE (OR REPLACE|VIEW|MATERIALIZED)\b": self._create_view,
            r"DROP\b": self._drop,
            r"SET\b": self._set,
            r"INSERT INTO\b": self._insert,
            r"UPDATE\b": self._update,
            r"DELETE FROM\b": self._delete,
            r"TRUNCATE\b": self._truncate,
        }

    def _create_table(self, text: str) -> None:
        read = read_create_table(text)
        if read.name in self._tables and read.is_optional:
            return
        self._check_free(read.name)
        if read.query is not None:
            self._create_filled(read.name, read.query)
            return
        problems = Problems()
        source = Source("statement", f"CREATE TABLE {_quoted(read.name)} ({read.columns})")
        statements = [statement for _, statement in parse_statements(source, problems)]
        problems.raise_all()
        (statement,) = statements
        if not isinstance(statement, CreateTable) or statement.query is not None or statement.options:
            raise UserError("a table of a suite has columns, and no query or connector")
        if any(column.generated is not None for column in statement.columns):
            raise UserError("a table of a suite has no generated columns", hint="compute them in a view")
        schema = pa.schema(
            [pa.field(column.name, column.field.type, column.field.nullable) for column in statement.columns]
        )
        rows = schema.append(pa.field(_ROW, pa.int64())).empty_table()
        jsonb = [
            column.name
            for column in statement.columns
            if re.search(rf'\b{re.escape(column.name)}"?\s+JSONB\b(?!\s*\[)', read.columns, re.IGNORECASE)
        ]
        self._tables[read.name] = _Table(
            read.name, read.columns, schema, statement.primary_key, rows, jsonb=jsonb, defaults=read.defaults
        )

    def _create_filled(self, name: str, query: str) -> None:
        """CREATE TABLE AS: a table with the rows that a query has now."""
        pipeline, preview = self._compile(query, self._views)
        schema = pa.schema([field.with_nullable(True) for field in preview.columns])
        rows = schema.append(pa.field(_ROW, pa.int64())).empty_table()
        self._tables[name] = _Table(name, ", ".join(column_lines(list(schema))), schema, (), rows)
        self._tables[name].insert(self._collected(pipeline, preview).rename_columns(schema.names))

    def _create_view(self, text: str) -> None:
        view = read_create_view(text)
        if view.name in self._views and view.is_optional:
            return
        views = {name: definition for name, definition in self._views.items() if name != view.name}
        if not (view.replaces and view.name in self._views):
            self._check_free(view.name)
        views[view.name] = view.definition
        self._compile(f"SELECT * FROM {_quoted(view.name)}", views)  # noqa: S608 - it is a name
        self._views = views

    def _drop(self, text: str) -> None:
        drop = read_drop(text)
        if drop.kind == "INDEX":
            return
        for name in drop.names:
            if name not in self._tables and name not in self._views and not drop.is_optional:
                raise self._unknown(name)
            self._tables.pop(name, None)
            self._views.pop(name, None)

    def _set(self, text: str) -> None:
        """Keep a setting of Headrace; those of other engines say how they compute, but for the time zone."""
        match = re.match(
            r"SET\s+(?:SESSION\s+|LOCAL\s+)?(TIME\s+ZONE|\w+)\s*(?:=|TO)?\s*(.+)", text, re.IGNORECASE
        )
        if match is None:
            raise UserError("it is no SET name = value")
        name, value = match[1].lower(), match[2].strip("'\" ").upper()
        if name == "updating_ttl":
            self._settings.append(text)
        elif name in ("timezone", "time zone") and value not in ("UTC", "GMT", "ETC/UTC"):
            raise UserError(f"the time zone is UTC, not {value}", hint="write ts AT TIME ZONE 'Europe/Oslo'")

    def _insert(self, text: str) -> int:
        insert = read_insert(text)
        table = self._table(insert.name)
        for name in insert.columns or ():
            self._check_column(table, name)
        query, columns = insert.query, list(insert.columns or table.schema.names)
        if re.match(r"VALUES\b", query, re.IGNORECASE):
            query = typed_values(query, [table.schema.field(name).type for name in columns])
        rows = self._collected(*self._compile(query, self._views))
        columns = columns if insert.columns else columns[: rows.num_columns]
        if len(columns) != rows.num_columns:
            raise UserError(f"{rows.num_columns} values are inserted into {len(columns)} columns")
        arrays = [
            rows.column(columns.index(column.name))
            if column.name in columns
            else self._default(table, column, rows.num_rows)
            for column in table.schema
        ]
        table.insert(_cast(arrays, table.schema))
        return int(rows.num_rows)

    def _default(self, table: _Table, column: pa.Field, count: int) -> pa.Array:
        """The values of a column that an INSERT does not name."""
        default = table.defaults.get(column.name)
        if default is None:
            return pa.nulls(count, column.type)
        query = f"SELECT CAST({default} AS {sql_type(column.type)})"
        value = self._collected(*self._compile(query, self._views)).column(0)
        return pa.concat_arrays([value.combine_chunks()] * count) if count else pa.nulls(0, column.type)

    def _update(self, text: str) -> int:
        update = read_update(text)
        table = self._table(update.name)
        for name in update.values:
            self._check_column(table, name)
        values = {
            name: table.defaults.get(name, "NULL") if value.upper() == "DEFAULT" else value
            for name, value in update.values.items()
        }
        columns = [
            value if pa.types.is_struct(kind) else f"CAST(({value}) AS {sql_type(kind)})"
            for value, kind in ((value, table.schema.field(name).type) for name, value in values.items())
        ]
        changed = self._matching(table, columns, update)
        numbers = changed.column(0)
        old = self._numbered(table, numbers)
        new = old
        for index, name in enumerate(values, start=1):
            at = new.schema.get_field_index(name)
            new = new.set_column(
                at, table.schema.field(name), _cast_column(changed.column(index), table.schema.field(name))
            )
        # One row after the other, as a server tells it.
        table.apply(
            [
                change
                for index in range(old.num_rows)
                for change in ((True, old.slice(index, 1)), (False, new.slice(index, 1)))
            ]
        )
        return int(old.num_rows)

    def _delete(self, text: str) -> int:
        delete = read_delete(text)
        table = self._table(delete.name)
        deleted = self._matching(table, [], delete)
        table.apply([(True, self._numbered(table, deleted.column(0)))])
        return int(deleted.num_rows)

    def _truncate(self, text: str) -> int:
        return self._delete(re.sub(r"^TRUNCATE\s+(TABLE\s+)?", "DELETE FROM ", text, flags=re.IGNORECASE))

    @staticmethod
    def _numbered(table: _Table, numbers: pa.ChunkedArray) -> pa.Table:
        """The rows with these numbers, in their order."""
        index = {number: at for at, number in enumerate(table.rows.column(_ROW).to_pylist())}
        return table.rows.take(pa.array([index[number] for number in numbers.to_pylist()], pa.int64()))

    def _matching(self, table: _Table, columns: Sequence[str], change: ChangeText) -> pa.Table:
        """The numbers of the rows that a statement changes, each once, in order, and values for each."""
        name = _quoted(table.name)
        items = ", ".join([f"{name}.{_ROW}", *columns])
        others = f", {change.others}" if change.others else ""
        where = f" WHERE {change.condition}" if change.condition else ""
        query = f"SELECT {items} FROM {name}{others}{where}"  # noqa: S608 - it is the SQL of a suite
        rows = self._collected(*self._compile(query, self._views, numbered=table.name))
        first: dict[int, int] = {}
        for at, number in enumerate(rows.column(0).to_pylist()):
            first.setdefault(number, at)
        return rows.take(pa.array([first[number] for number in sorted(first)], pa.int64()))

    def _collected(self, pipeline: Pipeline, preview: Preview) -> pa.Table:
        """The rows of a query, in the order in which it gives them."""
        counted = self._run(pipeline, preview, [(1, None)])
        rows = [_thawed(row) for row in counted.elements()]
        arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(preview.columns)]
        return pa.table(arrays, names=[str(at) for at in range(len(preview.columns))])

    @staticmethod
    def _check_column(table: _Table, name: str) -> None:
        if name not in table.schema.names:
            hint = suggest(name, table.schema.names, listing="the columns are")
            raise UserError(f"there is no column `{name}`", hint=hint)

    def _table(self, name: str) -> _Table:
        if name not in self._tables:
            raise self._unknown(name)
        return self._tables[name]

    def _check_free(self, name: str) -> None:
        if name in self._tables or name in self._views:
            raise UserError(f"there is already a table or view called `{name}`")

    def _unknown(self, name: str) -> UserError:
        names = [*self._tables, *self._views]
        return UserError(f"there is no table `{name}`", hint=suggest(name, names, listing="there are"))

    # ---------------------------------------------------------------------------------------- queries

    def query(self, sql: str) -> list[Row]:
        """Return the rows of a SELECT after all changes, computed as a stream in two ways.

        An ORDER BY without LIMIT has no effect: the rows of a suite's query are compared without an order.
        """
        pipeline, preview = self._compile(without_order(sql.strip().removesuffix(";")), self._views)
        whole = self._run(pipeline, preview, [(1, None)])
        changes = sum(rows.num_rows for table in self._tables.values() for _, rows in table.changes)
        resumed = self._run(pipeline, preview, [(2, 2), (3, None)], epoch_rows=max(1, changes // 4))
        if whole != resumed:
            missing, more = whole - resumed, resumed - whole
            raise InternalError(
                f"stopped and resumed, the query misses {list(missing)[:3]} and has {list(more)[:3]} more"
            )
        return [_thawed(row) for row in whole.elements()]

    def _compile(
        self, query: str, views: Mapping[str, str], *, numbered: str | None = None
    ) -> tuple[Pipeline, Preview]:
        """A query over tables and views; of the table `numbered` it reads the hidden column too."""
        previews: list[Preview] = []

        def show(preview: Preview) -> tuple[str, dict[str, Any]]:
            previews.append(preview)
            return "memory", {"name": _RESULT}

        statements = [*self._settings]
        for name, table in self._tables.items():
            path = self._folder / f"{name}.arrow"
            log = table.log(numbered=name == numbered)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, log.schema) as writer:
                writer.write_table(log)
            statements.append(table.definition(path, numbered=name == numbered))
        text = ";\n".join([*statements, *views.values(), query])
        pipeline = Pipeline.from_sql(
            [Source("query", text)], udfs=self._functions, name="suite", preview=show
        )
        pipeline.plan()
        if len(previews) != 1:
            raise UserError("a query is one SELECT")
        return pipeline, previews[0]

    @staticmethod
    def _run(
        pipeline: Pipeline,
        preview: Preview,
        lives: Sequence[tuple[int, int | None]],
        *,
        epoch_rows: int | None = None,
    ) -> Counter[Any]:
        now = ManualClock()
        results: list[RunResult] = []
        with tempfile.TemporaryDirectory(prefix="headrace-slt-") as state:
            for parallelism, epochs in lives:
                result = run_in_process(
                    pipeline,
                    state,
                    parallelism=parallelism,
                    max_epochs=epochs,
                    epoch_rows=epoch_rows,
                    clock=now,
                )
                results.append(result)
        rows: Counter[Any] = Counter()
        for result in results:
            table = result.rows[_RESULT]
            if not table.num_rows:
                continue
            retracts = table.column(RETRACT).to_pylist() if RETRACT in table.column_names else None
            values = zip(*(_values(table.column(name)) for name in preview.columns.names), strict=True)
            for index, row in enumerate(values):
                rows[row] += -1 if retracts is not None and retracts[index] else 1
        wrong = [row for row, count in rows.items() if count < 0]
        if wrong:
            raise InternalError(f"a row was taken back that was not there: {_thawed(wrong[0])}")
        return +rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return [_frozen(value) for value in column.to_pylist()]


def _frozen(value: Any) -> Any:
    """A value that can be hashed; NaN is equal to itself."""
    if isinstance(value, list):
        return ("list", *map(_frozen, value))
    if isinstance(value, dict):
        return ("dict", *((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    return value


def _thawed(value: Any) -> Any:
    if type(value) is not tuple:
        return value  # an interval is a tuple of a type of its own
    if value[:1] == ("list",):
        return [_thawed(item) for item in value[1:]]
    if value[:1] == ("dict",):
        return {key: _thawed(item) for key, item in value[1:]}
    return float("nan") if value == ("nan",) else tuple(_thawed(item) for item in value)


def _cast(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    arrays = [_cast_column(column, declared) for column, declared in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _by_position(column: Any, declared: pa.DataType) -> Any:
    """Values of which structs have the names of the declared type: `row(1, 'a')` has names of its own."""
    if not (pa.types.is_struct(declared) and pa.types.is_struct(column.type)):
        return column
    if declared.num_fields != column.type.num_fields:
        raise UserError(f"a row of {column.type.num_fields} values is not {declared}")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.flatten()  # NULL where the struct is
    fields = [
        _by_position(value, field.type).cast(field.type)
        for value, field in zip(values, declared, strict=True)
    ]
    return pa.StructArray.from_arrays(fields, fields=list(declared), mask=array.is_null())


def _cast_column(column: Any, declared: pa.Field) -> Any:
    try:
        array = _by_position(column, declared.type).cast(declared.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"a value of column `{declared.name}` is not {declared.type}: {error}") from None
    if not declared.nullable and array.null_count:
        raise UserError(f"column `{declared.name}` is NOT NULL, and a value is null")
    return array


def _quoted(name: str) -> str:
    return f'"{name}"'
