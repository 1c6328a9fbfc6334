"""Tables that statements insert into, update and delete from: the engine of sqllogictest suites.

A table is the history of its changes. Each query runs as a pipeline over the whole history, uninterrupted,
and stopped and resumed with another parallelism: both must give the same rows.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from datafusion import SessionContext
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
from headrace.jobs.progress import RunResult
from headrace.model.fragments import Function
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split
from headrace.model.registry import registry
from headrace.sql.compile import Preview
from headrace.sql.parse.statements import parse_statements
from headrace.sql.parse.table_definition import CreateTable
from headrace.testing.in_process import ManualClock, run_in_process
from headrace.testing.sqllogictest import Row

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

    def insert(self, rows: pa.Table) -> None:
        """Add rows, each with a new number."""
        numbers = range(self.inserted, self.inserted + rows.num_rows)
        self.apply([(False, rows.append_column(_ROW, pa.array(numbers, pa.int64())))])
        self.inserted += rows.num_rows

    def apply(self, changes: Sequence[tuple[bool, pa.Table]]) -> None:
        """Take rows back and add rows, in order; refuse two rows with the same key."""
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

    def definition(self, path: Path) -> str:
        """The statements that define the table over the file with its log."""
        options = f"WITH (connector = '{CONNECTOR}', type = 'source', path = '{path}')"
        if self.key:
            return f"CREATE TABLE {self.name} ({self.columns}) {options}"
        hidden = f"{self.name}__changes"
        listed = ", ".join(_quoted(name) for name in self.schema.names)
        table = f"CREATE TABLE {hidden} ({self.columns}, {_ROW} BIGINT NOT NULL PRIMARY KEY) {options}"
        view = f"CREATE VIEW {self.name} AS SELECT {listed} FROM {hidden}"  # noqa: S608 - they are names
        return f"{table};\n{view}"

    def log(self) -> pa.Table:
        """The changes with `_retract`, each a second after the one before."""
        tables = [
            rows.append_column(RETRACT, pa.array([retracts] * rows.num_rows, pa.bool_()))
            for retracts, rows in self.changes
        ]
        empty = self.rows.schema.empty_table().append_column(RETRACT, pa.array([], pa.bool_()))
        log = pa.concat_tables([empty, *tables])
        if self.key:
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

    def execute(self, sql: str) -> None:
        """Define a table or a view, change the rows of a table, or set a setting."""
        text = sql.strip().removesuffix(";").strip()
        words = [word.lower() for word in re.findall(r"[A-Za-z_]+", text)[:3]]
        if words[:2] == ["create", "table"]:
            self._create_table(text)
        elif words[:2] == ["create", "view"]:
            self._create_view(text)
        elif words[:1] == ["drop"]:
            self._drop(text)
        elif words[:1] == ["set"]:
            self._settings.append(text)
        elif words[:2] == ["insert", "into"]:
            self._insert(text)
        elif words[:1] == ["update"]:
            self._update(text)
        elif words[:2] == ["delete", "from"]:
            self._delete(text)
        else:
            raise UserError(
                f"`{' '.join(words).upper()}` is not a statement of a suite",
                hint="statements are CREATE TABLE, CREATE VIEW, DROP, SET, INSERT, UPDATE and DELETE",
            )

    def _create_table(self, text: str) -> None:
        problems = Problems()
        statements = [statement for _, statement in parse_statements(Source("statement", text), problems)]
        problems.raise_all()
        (statement,) = statements
        if not isinstance(statement, CreateTable) or statement.query is not None or statement.options:
            raise UserError("a table of a suite has columns, and no query or connector")
        self._check_free(statement.name)
        columns = text[text.index("(") + 1 : text.rindex(")")]
        schema = pa.schema(
            [pa.field(column.name, column.field.type, column.field.nullable) for column in statement.columns]
        )
        rows = schema.append(pa.field(_ROW, pa.int64())).empty_table()
        self._tables[statement.name] = _Table(statement.name, columns, schema, statement.primary_key, rows)

    def _create_view(self, text: str) -> None:
        match = re.match(r"CREATE\s+VIEW\s+(\w+)", text, re.IGNORECASE)
        if match is None:
            raise UserError("a view has a name: CREATE VIEW name AS SELECT …")
        name = match[1].lower()
        self._check_free(name)
        views = {**self._views, name: text}
        self._compile(f"SELECT * FROM {name}", views)  # noqa: S608 - it is a name
        self._views = views

    def _drop(self, text: str) -> None:
        match = re.fullmatch(r"DROP\s+(?:TABLE|VIEW)\s+(\w+)", text, re.IGNORECASE)
        name = match[1].lower() if match else ""
        if name not in self._tables and name not in self._views:
            raise self._unknown(name)
        self._tables.pop(name, None)
        self._views.pop(name, None)

    def _insert(self, text: str) -> None:
        match = re.match(r"INSERT\s+INTO\s+(\w+)\s*(\([^()]*\))?\s*(VALUES|SELECT)\b", text, re.IGNORECASE)
        if match is None:
            raise UserError("it is no INSERT INTO table [(columns)] VALUES … or SELECT …")
        table = self._table(match[1])
        names = [name.strip().lower() for name in match[2][1:-1].split(",")] if match[2] else None
        query = text[match.start(3) :]
        rows = self._select(f"SELECT * FROM ({query}) AS inserted")  # noqa: S608 - it is the SQL of a suite
        columns = names or table.schema.names[: rows.num_columns]
        if len(columns) != rows.num_columns:
            raise UserError(f"{rows.num_columns} values are inserted into {len(columns)} columns")
        unknown = [name for name in columns if name not in table.schema.names]
        if unknown:
            hint = suggest(unknown[0], table.schema.names, listing="the columns are")
            raise UserError(f"there is no column `{unknown[0]}`", hint=hint)
        arrays = [
            rows.column(columns.index(column.name))
            if column.name in columns
            else pa.nulls(rows.num_rows, column.type)
            for column in table.schema
        ]
        table.insert(_cast(arrays, table.schema))

    def _update(self, text: str) -> None:
        match = re.match(r"UPDATE\s+(\w+)\s+SET\s+", text, re.IGNORECASE)
        if match is None:
            raise UserError("it is no UPDATE table SET column = value [WHERE …]")
        table = self._table(match[1])
        assignments, condition = _split_where(text[match.end() :])
        values = {}
        for assignment in _split(assignments, ","):
            name, equals, value = assignment.partition("=")
            if not equals or name.strip().lower() not in table.schema.names:
                raise UserError(f"`{assignment.strip()}` does not set a column of the table")
            values[name.strip().lower()] = value
        columns = ", ".join(
            f"{values.get(name, _quoted(name))} AS {_quoted(name)}" for name in table.schema.names
        )
        changed = self._matching(match[1], columns, condition)
        numbers = changed.column(_ROW)
        new = _cast(changed.drop_columns([_ROW]).columns, table.schema).append_column(_ROW, numbers)
        old = self._numbered(table, numbers)
        # One row after the other, as a server tells it.
        table.apply(
            [
                change
                for index in range(old.num_rows)
                for change in ((True, old.slice(index, 1)), (False, new.slice(index, 1)))
            ]
        )

    def _delete(self, text: str) -> None:
        match = re.match(r"DELETE\s+FROM\s+(\w+)\s*", text, re.IGNORECASE)
        if match is None:
            raise UserError("it is no DELETE FROM table [WHERE …]")
        table = self._table(match[1])
        rest, condition = _split_where(f" {text[match.end() :]}")
        if rest.strip():
            raise UserError(f"`{rest.strip()}` is not expected in a DELETE")
        deleted = self._matching(match[1], "", condition)
        table.apply([(True, self._numbered(table, deleted.column(_ROW)))])

    @staticmethod
    def _numbered(table: _Table, numbers: pa.ChunkedArray) -> pa.Table:
        """The rows with these numbers, in their order."""
        index = {number: at for at, number in enumerate(table.rows.column(_ROW).to_pylist())}
        return table.rows.take(pa.array([index[number] for number in numbers.to_pylist()], pa.int64()))

    def _matching(self, name: str, columns: str, condition: str) -> pa.Table:
        where = f" WHERE {condition}" if condition else ""
        listed = f", {columns}" if columns else ""
        return self._select(f"SELECT {_ROW}{listed} FROM {name}{where} ORDER BY {_ROW}", numbered=True)  # noqa: S608 - it is the SQL of a suite

    def _select(self, sql: str, *, numbered: bool = False) -> pa.Table:
        """The rows of a query over the tables as they are now, with the numbers of their rows or without."""
        context = SessionContext()
        for name, table in self._tables.items():
            rows = table.rows if numbered else table.rows.drop_columns([_ROW])
            batches = rows.combine_chunks().to_batches() or [_empty_batch(rows.schema)]
            context.register_record_batches(name, [batches])
        try:
            return context.sql(sql).to_arrow_table()
        except Exception as error:  # noqa: BLE001 - DataFusion raises plain exceptions
            raise UserError(f"the statement cannot be executed: {error}") from None

    def _table(self, name: str) -> _Table:
        if name.lower() not in self._tables:
            raise self._unknown(name)
        return self._tables[name.lower()]

    def _check_free(self, name: str) -> None:
        if name in self._tables or name in self._views:
            raise UserError(f"there is already a table or view called `{name}`")

    def _unknown(self, name: str) -> UserError:
        names = [*self._tables, *self._views]
        return UserError(f"there is no table `{name}`", hint=suggest(name, names, listing="there are"))

    # ---------------------------------------------------------------------------------------- queries

    def query(self, sql: str) -> list[Row]:
        """Return the rows of a SELECT after all changes, computed as a stream in two ways."""
        pipeline, preview = self._compile(sql.strip().removesuffix(";"), self._views)
        whole = self._run(pipeline, preview, [(1, None)])
        changes = sum(rows.num_rows for table in self._tables.values() for _, rows in table.changes)
        resumed = self._run(pipeline, preview, [(2, 2), (3, None)], epoch_rows=max(1, changes // 4))
        if whole != resumed:
            missing, more = whole - resumed, resumed - whole
            raise InternalError(
                f"stopped and resumed, the query misses {list(missing)[:3]} and has {list(more)[:3]} more"
            )
        return [_thawed(row) for row in whole.elements()]

    def _compile(self, query: str, views: Mapping[str, str]) -> tuple[Pipeline, Preview]:
        previews: list[Preview] = []

        def show(preview: Preview) -> tuple[str, dict[str, Any]]:
            previews.append(preview)
            return "memory", {"name": _RESULT}

        statements = [*self._settings]
        for name, table in self._tables.items():
            path = self._folder / f"{name}.arrow"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.log().schema) as writer:
                writer.write_table(table.log())
            statements.append(table.definition(path))
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
    if not isinstance(value, tuple):
        return value
    if value[:1] == ("list",):
        return [_thawed(item) for item in value[1:]]
    if value[:1] == ("dict",):
        return {key: _thawed(item) for key, item in value[1:]}
    return float("nan") if value == ("nan",) else tuple(_thawed(item) for item in value)


def _cast(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    arrays = []
    for column, declared in zip(columns, schema, strict=True):
        try:
            array = column.cast(declared.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(f"a value of column `{declared.name}` is not {declared.type}: {error}") from None
        if not declared.nullable and array.null_count:
            raise UserError(f"column `{declared.name}` is NOT NULL, and a value is null")
        arrays.append(array)
    return pa.table(arrays, schema=schema)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _split_where(text: str) -> tuple[str, str]:
    """A text before and after its WHERE, which is not inside of parentheses or a string."""
    for match in re.finditer(r"\bWHERE\b", text, re.IGNORECASE):
        if _is_outside(text, match.start()):
            return text[: match.start()], text[match.end() :].strip()
    return text, ""


def _split(text: str, separator: str) -> list[str]:
    cuts = [index for index, sign in enumerate(text) if sign == separator and _is_outside(text, index)]
    return [text[low + 1 : high] for low, high in zip([-1, *cuts], [*cuts, len(text)], strict=True)]


def _is_outside(text: str, index: int) -> bool:
    before = re.sub(r"'[^']*'", "", text[:index])
    return "'" not in before and before.count("(") == before.count(")")


def _quoted(name: str) -> str:
    return f'"{name}"'
