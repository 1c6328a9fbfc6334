"""Streams: rows on their way from one operator to the next, and the methods that compose them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.api.arguments import (
    check_argument,
    check_duration,
    check_id,
    check_mapping,
    check_row_count,
    check_seconds,
    refuse_column_as_id,
    refuse_id_alone,
)
from headrace.api.batch_operators import (
    Batches,
    ConformColumns,
    DeclaredRows,
    FlatMapBatches,
    FlatMapRows,
    ForwardBatches,
    MapBatches,
)
from headrace.api.expressions import Column
from headrace.api.function_calls import call_operator, call_schema
from headrace.api.grouped import GroupedStream
from headrace.api.joins import JoinKeys, JoinType, join_text
from headrace.api.live_table import LiveTable
from headrace.api.other_names import missing_attribute
from headrace.api.query_text import QueryText, SqlText, add_items, expression_text
from headrace.api.run_options import RunOptions
from headrace.api.schemas import Schema, parse_schema
from headrace.api.shapes import Derived, Part, StreamShape, declared_shape
from headrace.base.call_site import call_site, located
from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ConfigurationError, PlanError, suggest
from headrace.connectors.columns import without_hidden
from headrace.model.builder import Port
from headrace.model.fragments import Function, quote
from headrace.model.operator import DEAD_LETTER, DEAD_LETTERS, ArrowOperator, SourceOperator
from headrace.model.plan import EdgeKind
from headrace.model.registry import registry
from headrace.sql.streams import Relational

if TYPE_CHECKING:
    from headrace.api.connectors import ConfiguredSink
    from headrace.api.pipeline import Pipeline

DEFAULT_LATENESS = timedelta(seconds=1)
"""How far behind event time the watermark of a stream without one is, as for a table that declares none."""


class Stream:
    """The rows that an operator sends to the next; created by methods of a pipeline and of streams.

    Methods that compute with columns (`filter`, `select`, `group_by`, `join`, `sql` …) take SQL expressions,
    as strings or made with `hr.col`, with the semantics of SQL. They need the columns of the stream: see
    `schema`.

    >>> import headrace as hr
    >>> pipeline = hr.Pipeline("shops")
    >>> sales = pipeline.source("memory", rows=[{"shop": "mill", "amount": 3}, {"shop": "weir", "amount": 5}])
    >>> large = sales.filter(hr.col("amount") > 4).select("shop", double="amount * 2")
    >>> large
    Stream(select_1: shop TEXT, double BIGINT)
    """

    def __init__(self, pipeline: Pipeline, parts: tuple[Part, ...], shape: StreamShape) -> None:
        self._pipeline = pipeline
        self._parts = parts
        self._shape = shape
        self._readable: Relational | None = None

    # ------------------------------------------------------------------------------------ what it is

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that the stream belongs to."""
        return self._pipeline

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the rows, or None if they are not known.

        They are known for sources that declare them (`schema=`), for rows in memory and for results of
        queries. Behind `map`, `flat_map` and `apply` they are known if `schema=` is given there.

        >>> import headrace as hr
        >>> stream = hr.Pipeline().source("memory", rows=[{"id": 1}])
        >>> stream.schema.names
        ['id']
        """
        return self._shape.columns

    @property
    def is_updating(self) -> bool:
        """Whether rows may be retracted later, as those of an aggregate without a window.

        >>> import headrace as hr
        >>> stream = hr.Pipeline().source("memory", rows=[{"id": 1}])
        >>> stream.group_by("id").aggregate(n="count(*)").is_updating
        True
        """
        return self._shape.updating

    if not TYPE_CHECKING:  # to a type checker a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            columns = None if name.startswith("_") else self._shape.columns
            raise missing_attribute(self, name, () if columns is None else columns.names)

    def __repr__(self) -> str:
        from headrace.sql.types import type_name

        names = " + ".join(part.name if isinstance(part, Derived) else part.node for part in self._parts)
        if self._shape.columns is None:
            return f"Stream({names})"
        columns = ", ".join(f"{field.name} {type_name(field.type)}" for field in self._shape.columns)
        return f"Stream({names}: {columns}{'; updating' if self._shape.updating else ''})"

    # ------------------------------------------------------------------------------- rows and columns

    @located
    def filter(self, *conditions: str | Column, id: str | None = None) -> Stream:  # noqa: A002
        """Keep the rows for which every condition is true.

        Args:
            conditions: SQL expressions of type BOOLEAN.
            id: the name of the operator.

        Returns:
            The stream of these rows.

        Raises:
            PlanError: the columns of the stream are not known, or there is no condition.
            SqlError: a condition is wrong; the error shows it with the line of the call.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.filter("amount > 2", hr.col("shop") != "weir")
        Stream(filter_1: shop TEXT, amount BIGINT)
        """
        if not conditions:
            raise PlanError("filter takes at least one condition", hint="such as `filter('amount > 5')`")
        names = self._columns("filter").names
        text = QueryText("SELECT * FROM input WHERE ")
        items = [expression_text(condition, names, "filter") for condition in conditions]
        for index, item in enumerate(items):
            text.add(" AND (" if index else "(").expression(item).add(")")
        return self._query("filter", text, items, id=id)

    @located
    def select(
        self,
        *columns: str | Column | Mapping[str, str | Column],
        id: str | None = None,  # noqa: A002
        **named: str | Column,
    ) -> Stream:
        """Choose and compute columns; the result has only these.

        Args:
            columns: columns and expressions, with names after `AS`: `"amount * 2 AS double"`, `"*"`. A
                mapping names several: `{"double": "amount * 2"}`.
            id: the name of the operator.
            named: expressions by the names of their columns.

        Returns:
            The stream of these columns.

        Raises:
            PlanError: the columns of the stream are not known, or no column is given.
            SqlError: an expression is wrong.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.select("shop", hr.col("amount").cast("DOUBLE").alias("price"), double="amount * 2")
        Stream(select_1: shop TEXT, price DOUBLE, double BIGINT)
        """
        if not columns and not named:
            refuse_id_alone(id, "select")
            raise PlanError("select takes at least one column", hint="such as `select('id', total='a + b')`")
        input_names = self._columns("select").names
        check_id(id, "select")
        refuse_column_as_id(id, input_names, "select")
        text = QueryText("SELECT ")
        checked = add_items(text, columns, named, input_names, "select")
        return self._query("select", text.add(" FROM input"), checked, id=id)

    @located
    def with_columns(
        self,
        *columns: Column | Mapping[str, str | Column],
        id: str | None = None,  # noqa: A002
        **named: str | Column,
    ) -> Stream:
        """Add columns, or replace those of the same name; the others stay.

        Args:
            columns: expressions with an alias, or mappings of names to expressions.
            id: the name of the operator.
            named: expressions by the names of their columns.

        Returns:
            The stream with these columns.

        Raises:
            PlanError: the columns of the stream are not known, or an expression has no name.
            SqlError: an expression is wrong.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.with_columns(shop="upper(shop)", double=hr.col("amount") * 2)
        Stream(with_columns_1: shop TEXT, amount BIGINT, double BIGINT)
        """
        values: dict[str, str | Column] = {}
        for column in columns:
            if isinstance(column, Mapping):
                values |= check_mapping(column, "with_columns", "with_columns({'total': 'a + b'})")
            elif (name := getattr(column, "name", None)) is not None:
                values[name] = column
            else:
                raise PlanError(
                    f"with_columns takes expressions with a name, got {column!r}",
                    hint="write `with_columns(total='a + b')` or `(hr.col('a') + 1).alias('total')`",
                )
        values |= named
        if not values:
            refuse_id_alone(id, "with_columns")
            raise PlanError("with_columns takes at least one column", hint="such as `total='a + b'`")
        names = self._columns("with_columns").names
        check_id(id, "with_columns")
        refuse_column_as_id(id, names, "with_columns")
        texts = {name: expression_text(value, names, "with_columns") for name, value in values.items()}
        text = QueryText("SELECT ")
        for index, name in enumerate([*names, *(new for new in texts if new not in names)]):
            text.add(", " if index else "")
            if name in texts:
                text.add("(").expression(texts[name]).add(f") AS {quote(name)}")
            else:
                text.add(quote(name))
        return self._query("with_columns", text.add(" FROM input"), list(texts.values()), id=id)

    @located
    def drop(self, *columns: str, id: str | None = None) -> Stream:  # noqa: A002
        """Remove columns.

        Args:
            columns: their names.
            id: the name of the operator.

        Returns:
            The stream of the other columns.

        Raises:
            PlanError: there is no such column, or no column would be left.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.drop("amount")
        Stream(drop_1: shop TEXT)
        """
        names = self._columns("drop").names
        self._check_columns(columns, "drop")
        remaining = [name for name in names if name not in columns]
        if not remaining:
            raise PlanError("drop would leave no column")
        text = QueryText(f"SELECT {', '.join(map(quote, remaining))} FROM input")
        return self._query("drop", text, (), id=id)

    @located
    def rename(
        self,
        columns: Mapping[str, str] | None = None,
        /,
        *,
        id: str | None = None,  # noqa: A002
        **named: str,
    ) -> Stream:
        """Rename columns.

        Args:
            columns: old name → new name, as `{"id": "order_id"}`.
            id: the name of the operator.
            named: the same as keywords: `rename(old="new")`.

        Returns:
            The stream with the new names.

        Raises:
            PlanError: there is no such column, or two columns would have the same name.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.rename(amount="price")
        Stream(rename_1: shop TEXT, price BIGINT)
        """
        by_name = {} if columns is None else check_mapping(columns, "rename", "rename({'old': 'new'})")
        renamed = {**by_name, **named}
        names = self._columns("rename").names
        if not renamed:
            refuse_id_alone(id, "rename")
            raise PlanError("rename takes at least one column", hint="such as `rename(old='new')`")
        self._check_columns(list(renamed), "rename")
        for new in renamed.values():
            if new == "" or not isinstance(new, str):
                raise PlanError(f"rename takes the new names of columns, got {new!r}")
        items = [f"{quote(name)} AS {quote(renamed.get(name, name))}" for name in names]
        return self._query("rename", QueryText(f"SELECT {', '.join(items)} FROM input"), (), id=id)

    @located
    def distinct(self, *, id: str | None = None) -> Stream:  # noqa: A002
        """Remove duplicate rows, as SELECT DISTINCT does.

        Args:
            id: the name of the operator and its state.

        Returns:
            The stream without duplicates. It is updating, unless the rows are results of windows.

        Raises:
            PlanError: the columns of the stream are not known.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill"}, {"shop": "mill"}])
        >>> sales.distinct()
        Stream(distinct_1: shop TEXT; updating)
        """
        self._columns("distinct")
        return self._query("distinct", QueryText("SELECT DISTINCT * FROM input"), (), id=id)

    # ----------------------------------------------------------------------------- groups and windows

    @located
    def group_by(self, *keys: str | Column) -> GroupedStream:
        """Group rows by columns or expressions, for `aggregate`.

        Args:
            keys: columns and expressions; expressions are named with `AS` or `.alias(…)`.

        Returns:
            The groups: `.aggregate(…)` computes a row for each, `.tumble(…)`, `.hop(…)` and `.session(…)`
            divide them into windows of event time first.

        Raises:
            PlanError: the columns of the stream are not known.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.group_by("shop").tumble("10s").aggregate(n="count(*)", total=hr.fn.sum("amount"))
        Stream(aggregate_1: shop TEXT, window STRUCT<start TIMESTAMP, end TIMESTAMP>, n BIGINT, total BIGINT)
        """
        columns = self._columns("group_by").names
        for key in keys:
            expression_text(key, columns, "group_by")
        return GroupedStream(self, keys)

    @located
    def tumble(self, width: str | timedelta) -> GroupedStream:
        """Divide all rows into windows of `width`, one after the other.

        Args:
            width: the length of a window, as `"10s"` or a timedelta.

        Returns:
            The windows, for `.aggregate(…)`. With keys it is `stream.group_by(…).tumble(…)`.

        Raises:
            PlanError: the columns of the stream are not known.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"amount": 3}])
        >>> sales.tumble("1m").aggregate(n="count(*)")
        Stream(aggregate_1: window STRUCT<start TIMESTAMP, end TIMESTAMP>, n BIGINT)
        """
        return self.group_by().tumble(width)

    @located
    def hop(self, slide: str | timedelta, width: str | timedelta) -> GroupedStream:
        """Divide all rows into windows of `width` that begin every `slide`.

        Args:
            slide: the distance between the starts of windows.
            width: the length of a window.

        Returns:
            The windows, for `.aggregate(…)`.

        Raises:
            PlanError: the columns of the stream are not known.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"amount": 3}])
        >>> sales.hop("10s", "1m")
        GroupedStream(hop(10s, 1m) of memory_1)
        """
        return self.group_by().hop(slide, width)

    @located
    def session(self, gap: str | timedelta) -> GroupedStream:
        """Divide all rows into sessions: windows with less than `gap` between their rows.

        Args:
            gap: a session ends after this long without rows.

        Returns:
            The windows, for `.aggregate(…)`.

        Raises:
            PlanError: the columns of the stream are not known.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"amount": 3}])
        >>> sales.session("30s")
        GroupedStream(session(30s) of memory_1)
        """
        return self.group_by().session(gap)

    # ------------------------------------------------------------------------------- several streams

    @located
    def join(
        self,
        other: Stream,
        on: JoinKeys,
        *,
        how: JoinType = "inner",
        within: str | timedelta | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Join this stream with another.

        The result has the columns of both; columns of `on` with the same name appear once. Rows that are
        results of the same windows are joined by window. Otherwise each row is kept for `updating_ttl` (24
        hours), and a left, right or full join is updating. With `within`, an inner join of append-only
        streams removes rows as soon as the watermark shows that no match can follow.

        Args:
            other: the other stream, of the same pipeline.
            on: the name of a column of both, several of them, a mapping of this stream's columns to the
                other's, or a condition over the tables `input` and `other`, such as `"input.id =
                other.order_id"`.
            how: which rows without a match are in the result: none (`inner`), those of this stream
                (`left`), of the other (`right`), or both (`full` or `outer`).
            within: the maximum distance between the event times of a pair.
            id: the name of the operator and its state.

        Returns:
            The joined stream.

        Raises:
            PlanError: `other` is not a stream of this pipeline, columns are not known, both have a column of
                the same name, or columns of `on` have types whose values are never equal.
            SqlError: the condition is wrong.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> orders = pipeline.source("memory", rows=[{"id": 1, "shop": "mill"}])
        >>> payments = pipeline.source("memory", rows=[{"order_id": 1, "paid": 3}])
        >>> orders.join(payments, on={"id": "order_id"}, within="1h")
        Stream(join_1: id BIGINT, shop TEXT, order_id BIGINT, paid BIGINT)
        """
        self._pipeline._check_own(other, "join")
        text, condition = join_text(self._columns("join"), other._columns("join"), on, how=how, within=within)
        checked = [] if condition is None else [condition]
        return self._query("join", text, checked, id=id, tables={"other": other})

    @located
    def union(self, *others: Stream) -> Stream:
        """Merge the rows of several streams; the watermark is the minimum.

        Args:
            others: streams of the same pipeline. Where the columns of all are known, they must have the same
                names, and are matched by name.

        Returns:
            The stream of all rows.

        Raises:
            PlanError: no other stream is given, one is not a stream of this pipeline, or the columns differ.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> north = pipeline.source("memory", rows=[{"shop": "mill"}])
        >>> south = pipeline.source("memory", rows=[{"shop": "weir"}])
        >>> north.union(south)
        Stream(memory_1 + memory_2: shop TEXT)
        """
        if not others:
            raise PlanError("union takes at least one other stream", hint="such as `north.union(south)`")
        for other in others:
            self._pipeline._check_own(other, "union")
        streams = (self, *others)
        shapes = [stream._shape for stream in streams]
        schemas = [shape.columns for shape in shapes]
        declared = [schema for schema in schemas if schema is not None]
        if len(declared) < len(streams):
            if any(shape.updating for shape in shapes):
                raise PlanError(
                    "an updating stream cannot be united with one whose columns are not known",
                    hint="pass `schema=` where that stream is made",
                )
        elif any(set(schema.names) != set(declared[0].names) for schema in declared):
            differing = next(schema for schema in declared if set(schema.names) != set(declared[0].names))
            columns = " and ".join(", ".join(schema.names) for schema in (declared[0], differing))
            raise PlanError(
                f"union of different columns: {columns}",
                hint="bring them to the same columns with `select` first",
            )
        elif any(schema != declared[0] for schema in declared) or any(
            stream._is_queried for stream in streams
        ):
            return self._union_all(others, declared[0].names)
        parts = tuple(part for stream in streams for part in stream._parts)
        shape = StreamShape(
            declared[0] if len(declared) == len(streams) else None,
            has_watermark=all(shape.has_watermark for shape in shapes),
            is_declared=any(shape.is_declared for shape in shapes),
        )
        return Stream(self._pipeline, parts, shape)

    def _union_all(self, others: Sequence[Stream], names: Sequence[str]) -> Stream:
        """Rows whose columns differ in order or type, as UNION ALL brings them together."""
        columns = ", ".join(map(quote, names))
        tables = {f"other{index}": other for index, other in enumerate(others)}
        selects = [f"SELECT {columns} FROM {table}" for table in ("input", *tables)]
        return self._query("union", QueryText(" UNION ALL ".join(selects)), (), id=None, tables=tables)

    @located
    def sql(self, query: str, *, id: str | None = None, **tables: Stream) -> Stream:  # noqa: A002
        """Compute a SELECT over this stream, which is called `input`, and others.

        Args:
            query: one SELECT. It may also read the tables and views of the pipeline.
            id: the name of its operators and their state.
            tables: other streams, by their names in the query.

        Returns:
            The stream of its rows.

        Raises:
            PlanError: the columns of a stream are not known.
            SqlError: the query is wrong.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.sql("SELECT shop, amount * 2 AS double FROM input WHERE amount > 1")
        Stream(sql_1: shop TEXT, double BIGINT)
        """
        return self._pipeline._query("sql", SqlText(query), {"input": self, **tables}, id=id)

    @located
    def as_table(self, name: str) -> Stream:
        """Let the SQL of the pipeline read this stream as a table.

        Args:
            name: the name of the table; not case-sensitive.

        Returns:
            This stream.

        Raises:
            PlanError: the columns of the stream are not known.
            SqlError: the name is taken.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> sales = pipeline.source("memory", rows=[{"shop": "mill", "amount": 3}]).as_table("sales")
        >>> pipeline.sql("SELECT shop FROM sales")
        Stream(sql_1: shop TEXT)
        """
        if not isinstance(name, str):
            raise PlanError(f"as_table takes the name of a table, got {type(name).__name__} {name!r}")
        self._pipeline._sql.register(name, self._rows("as_table"))
        return self

    # ------------------------------------------------------------------------- operators and functions

    @located
    def apply(
        self,
        operator: str | ArrowOperator,
        *others: Stream,
        id: str | None = None,  # noqa: A002 - the word the whole product uses
        schema: Schema | None = None,
        **options: Any,
    ) -> Stream:
        """Apply your own operator.

        For an updating stream the batches have a column `_retract`, true for retracted rows. Its result is
        updating if `schema` has that column: `{"n": "BIGINT", "_retract": "BOOLEAN"}`. Rows with a `_retract`
        that the schema does not declare are refused where a query reads them.

        Args:
            operator: an `ArrowOperator`, or the registered name of one.
            others: further inputs; this stream is input 0, the others are the inputs 1, 2, …
            id: the name of the operator and of its state; keep it when the pipeline changes.
            schema: the columns that the operator emits; needed if queries follow.
            options: the options of an operator that is given by name.

        Returns:
            The output stream of the operator.

        Raises:
            PlanError: `operator` is not an operator, or cannot be pickled for the workers.

        >>> import headrace as hr
        >>> class Twice(hr.ArrowOperator):
        ...     def process_batch(self, batch, ctx, collector):
        ...         collector.collect(batch)
        ...         collector.collect(batch)
        >>> hr.Pipeline().source("memory", rows=[{"n": 1}]).apply(Twice(), schema="n BIGINT")
        Stream(Twice_1: n BIGINT)
        """
        return self._pipeline.apply(operator, self, *others, id=id, schema=schema, **options)

    @located
    def map(
        self,
        function: Callable[[pa.RecordBatch], Batches],
        *,
        schema: Schema | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Apply a function from record batch to record batch.

        Batches of an updating stream have a column `_retract`, true for retracted rows. The function must
        keep this column; the result is updating too.

        Args:
            function: gets a `pyarrow.RecordBatch` with the event time in `_timestamp`, and returns one, of
                any number of rows; one without rows is dropped.
            schema: the columns that it returns; needed if queries follow. Batches are cast to these columns
                and types, and other columns are dropped.
            id: the name of the operator.

        Returns:
            The stream of the batches it returns.

        Raises:
            PlanError: `function` cannot be called.

        >>> import headrace as hr
        >>> numbers = hr.Pipeline().source("memory", rows=[{"n": 1}, {"n": 2}])
        >>> numbers.map(lambda batch: batch.slice(0, 1), schema=numbers.schema)
        Stream(map_1: n BIGINT)
        """
        _check_function(function, "map", "from a pyarrow.RecordBatch to a pyarrow.RecordBatch")
        shape, declared = self._returned(schema)
        operator = MapBatches(function, declared)
        return self._pipeline._add("operator", operator, (self,), id=id, options={}, shape=shape)

    @located
    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any]],
        *,
        per: Literal["row", "batch"] = "row",
        schema: Schema | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Apply a function that returns any number of rows for each row, or of batches for each batch.

        Args:
            function: gets a row as a dict and returns dicts; with `per="batch"` gets a `pyarrow.RecordBatch`
                and returns batches. A row that it returns has the event time of the row it came from, unless
                it has a `_timestamp`.
            per: `row`, or `batch`, which is much faster.
            schema: the columns that it returns; needed if queries follow. Rows are cast to these columns and
                types, and other columns are dropped.
            id: the name of the operator.

        Returns:
            The stream of the rows it returns.

        Raises:
            PlanError: `function` cannot be called, or the stream is updating: a function of one row
                cannot handle retractions. With `per="batch"` it must keep `_retract`, as for `map`.

        >>> import headrace as hr
        >>> lines = hr.Pipeline().source("memory", rows=[{"line": "a b"}, {"line": "c"}])
        >>> lines.flat_map(lambda row: [{"word": word} for word in row["line"].split()], schema="word TEXT")
        Stream(flat_map_1: word TEXT)
        """
        _check_function(function, "flat_map", f"from a {per} to several")
        if per not in ("row", "batch"):
            raise PlanError(f"`per` is 'row' or 'batch', got {per!r}")
        if per == "row" and self._shape.updating:
            raise PlanError(
                "flat_map cannot take the rows of an updating stream: rows that are taken back would count",
                hint="aggregate in windows (`.group_by(…).tumble(…)`), write the updates to a sink with "
                "format = 'debezium_json', or use `map` and keep the column `_retract` of its batches",
            )
        shape, declared = self._returned(schema)
        kind = FlatMapBatches if per == "batch" else FlatMapRows
        operator = kind(function, declared)
        return self._pipeline._add("operator", operator, (self,), id=id, options={}, shape=shape)

    @located
    def call(
        self,
        function: Function,
        *columns: str,
        into: str | Sequence[str],
        schema: Schema | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Call a user-defined function (`@hr.udf` …) for each row and add its result as a column.

        Args:
            function: made with `@hr.udf`, `@hr.async_udf` or `hr.native_udf`; one made with `@hr.udtf` gives
                rows for each row.
            columns: the columns that are its arguments.
            into: the name of the new column; for `@hr.udtf` the names of all columns it gives.
            schema: the columns of this stream, which an asynchronous function needs if they are not known:
                rows that wait for it are part of the checkpoint.
            id: the name of the operator and its state.

        Returns:
            The stream with the new columns.

        Raises:
            PlanError: `function` is not such a function, or the columns do not match its arguments.

        >>> import headrace as hr
        >>> @hr.udf
        ... def double(x: int) -> int:
        ...     return x * 2
        >>> hr.Pipeline().source("memory", rows=[{"n": 1}]).call(double, "n", into="twice")
        Stream(function_call_1: n BIGINT, twice BIGINT)
        """
        check_argument(into, "into", (str, list, tuple), "the name of a column", example="into='total'")
        names = [into] if isinstance(into, str) else list(into)
        for name in names:
            if name == "" or not isinstance(name, str):
                raise PlanError(f"`into` takes names of columns, got {name!r}")
        output_schema = self._shape.columns if schema is None else parse_schema(schema)
        operator = call_operator(function, columns, names, output_schema)
        if self._shape.columns is not None:
            self._check_columns([name for name in columns if name != TIMESTAMP], "call")
        result = call_schema(function, names, self._shape.columns)
        shape = replace(self._shape, columns=result, key=(), windowing=None)
        return self._pipeline._add("operator", operator, (self,), id=id, options={}, shape=shape)

    # ------------------------------------------------------------------------------- time and routing

    @located
    def watermark(
        self,
        column: str = TIMESTAMP,
        *,
        lateness: str | timedelta = timedelta(0),
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Take event time from a column and emit watermarks, as `WATERMARK FOR` does in SQL.

        The watermark is the maximum, over chunks of 512 rows, of the minimum time of the chunk, minus
        `lateness`: windows that end before it close. A stream without a watermark gets one with a lateness of
        one second where a query first reads it.

        Args:
            column: a column of type TIMESTAMP; it becomes the event time of its row.
            lateness: how far the watermark is behind event time.
            id: the name of the operator.

        Returns:
            The stream with this event time.

        Raises:
            PlanError: there is no such column, or it is not a timestamp.
            ConfigurationError: `lateness` is not a duration, or is negative.

        >>> import headrace as hr
        >>> from datetime import datetime
        >>> sales = hr.Pipeline().source("memory", rows=[{"amount": 3, "at": datetime(2026, 1, 1)}])
        >>> sales.watermark("at", lateness="5s")
        Stream(watermark_1: amount BIGINT, at TIMESTAMP(6))
        """
        if check_duration(lateness, "lateness") < timedelta(0):
            raise ConfigurationError(f"`lateness` must not be negative, got {lateness!r}")
        columns = self._shape.columns
        if columns is not None and column != TIMESTAMP:
            self._check_columns([column], "watermark")
            kind = columns.field(column).type
            if not pa.types.is_timestamp(kind):
                raise PlanError(
                    f"event-time column `{column}` is {kind}, not a timestamp",
                    hint=f"convert it first: `.with_columns({column}='to_timestamp({column})')`",
                )
        shape = replace(self._shape, has_watermark=True, windowing=None)
        return self._pipeline._add(
            "operator",
            "watermark",
            (self,),
            id=id,
            options={"column": column, "lateness": lateness},
            shape=shape,
        )

    @located
    def key_by(self, *columns: str) -> Stream:
        """Send rows with equal values in these columns to the same subtask of the next operator.

        Args:
            columns: their names; without any, all rows go to one subtask.

        Returns:
            The keyed stream.

        Raises:
            PlanError: there is no such column.

        >>> import headrace as hr
        >>> hr.Pipeline().source("memory", rows=[{"shop": "mill"}]).key_by("shop")
        Stream(memory_1: shop TEXT)
        """
        for column in columns:
            if not isinstance(column, str):
                raise PlanError(
                    f"key_by takes the names of columns, got {column!r}",
                    hint="compute the key as a column first: `.with_columns(key=…).key_by('key')`",
                )
        if self._shape.columns is not None:
            self._check_columns([name for name in columns if name != TIMESTAMP], "key_by")
        return self._routed("shuffle", columns)

    @located
    def broadcast(self) -> Stream:
        """Send every row to every subtask of the next operator.

        Returns:
            The stream, broadcast.

        >>> import headrace as hr
        >>> hr.Pipeline().source("memory", rows=[{"rate": 2}]).broadcast()
        Stream(memory_1: rate BIGINT)
        """
        return self._routed("broadcast", ())

    @located
    def output(self, name: str, *, schema: Schema | None = None) -> Stream:
        """A named output of the operator or source, such as `dead_letter` of a source.

        Args:
            name: the output.
            schema: its columns; needed if queries follow.

        Returns:
            The stream of that output.

        Raises:
            PlanError: the stream is the result of a query, which has no other outputs, or the source or
                operator has no output of that name.

        >>> import headrace as hr
        >>> source = hr.Pipeline().source("single_file", path="in.json", bad_data="dead_letter")
        >>> source.output("dead_letter").schema.names
        ['record', 'content', 'error', 'source', 'position', 'code', 'partition', 'offset_id']
        """
        parts = [part for part in self._parts if isinstance(part, Port)]
        if len(parts) < len(self._parts):
            raise PlanError(
                "the result of a query has no named outputs", hint="ask the source or operator for it"
            )
        for part in parts:
            _check_output(name, part.node, self._pipeline._operator(part.node))
        columns = without_hidden(DEAD_LETTERS) if name == DEAD_LETTER else None
        if schema is not None:
            columns = parse_schema(schema)
        ports = tuple(replace(part, output=name) for part in parts)
        return Stream(self._pipeline, ports, StreamShape(columns, is_declared=schema is not None))

    # ------------------------------------------------------------------------------------------ sinks

    @located
    def sink(
        self,
        sink: str | ArrowOperator | ConfiguredSink,
        *,
        id: str | None = None,  # noqa: A002
        **options: Any,
    ) -> Stream:
        """Write the rows to a sink.

        Args:
            sink: the name of a connector; its options made with `hr.sinks`; or an operator that is a sink.
            id: the name of the sink and of its state.
            options: the options of a connector that is given by name.

        Returns:
            This stream.

        Raises:
            ConfigurationError: an option is wrong.
            PlanError: the sink does not accept an updating stream, or another sink has the same target.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> sales = pipeline.source("memory", rows=[{"amount": 3}])
        >>> sales.sink("stdout").sink("memory", name="sales")
        Stream(memory_1: amount BIGINT)
        """
        what, connector_options = self._pipeline._connector("sink", sink, options)
        if isinstance(what, str):
            connector_options = self._sink_options(what, connector_options)
        if self._shape.updating:
            self._check_accepts_updates(what, connector_options)
        self._pipeline._add("sink", what, (self,), id=id, options=connector_options, shape=StreamShape())
        return self

    @located
    def show(
        self,
        n: int = 20,
        *,
        timeout: float | None = None,
        max_epochs: int | None = None,
        parallelism: int | None = None,
        options: RunOptions | None = None,
    ) -> LiveTable:
        """Run everything upstream of the stream and display its rows live; nothing is written to sinks.

        In a notebook the table is redrawn after each epoch until the run ends. Elsewhere it is written to
        standard output at the end. An interrupt ends the run and keeps the table.

        Args:
            n: how many of the newest rows are shown.
            timeout: end the run after this many seconds; needed for unbounded streams.
            max_epochs: end the run after this many epochs.
            parallelism: how many subtasks an operator has.
            options: the other settings of the run.

        Returns:
            The table.

        Raises:
            HeadraceError: the run failed.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill"}])
        >>> sales.show(5)  # doctest: +SKIP
        shop
        ----
        mill
        1 row
        """
        check_row_count(n)
        check_seconds(timeout)
        table = LiveTable(
            repr(self), self._shape.columns, updating=self._shape.updating, key=self._shape.key, limit=n
        )
        self._pipeline._show(
            self, table, timeout=timeout, max_epochs=max_epochs, parallelism=parallelism, options=options
        )
        return table

    def _sink_options(self, name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options with what a connector should know of a query's result, as for INSERT INTO."""
        if name not in registry.names("sink") or not any(isinstance(part, Derived) for part in self._parts):
            return options
        model = registry.options("sink", name)
        declared = {field.alias or field_name for field_name, field in model.model_fields.items()}
        inferred = {"schema": self._shape.columns, "primary_key": list(self._shape.key)}
        names = {*options, *(model.model_fields[n].alias or n for n in options if n in model.model_fields)}
        added = {n: value for n, value in inferred.items() if n in declared and n not in names and value}
        return {**options, **added}

    def _check_accepts_updates(self, sink: str | ArrowOperator, options: Mapping[str, Any]) -> None:
        operator = registry.build("sink", sink, options) if isinstance(sink, str) else sink
        if getattr(operator, "accepts_updates", False):
            return
        way = getattr(operator, "updates_with", "write format = 'debezium_json'")
        name = sink if isinstance(sink, str) else type(sink).__name__
        raise PlanError(
            f"`{name}` cannot take an updating stream: rows already written would have to change",
            hint=f"{way}, or aggregate in windows: .group_by(…).tumble(…)",
        )

    # ---------------------------------------------------------------------------------------- inside

    @property
    def _is_queried(self) -> bool:
        """Whether its rows are those of a query, or are taken back as those of a query are."""
        return self._shape.updating or any(isinstance(part, Derived) for part in self._parts)

    def _returned(self, schema: Schema | None) -> tuple[StreamShape, DeclaredRows]:
        """The shape of the rows that a function returns, and the check of what it returns."""
        shape = declared_shape(schema, has_watermark=self._shape.has_watermark)
        shape = replace(shape, updating=shape.updating or self._shape.updating, is_declared=False)
        return shape, DeclaredRows(shape.columns, shape.updating)

    def _routed(self, kind: EdgeKind, keys: tuple[str, ...]) -> Stream:
        parts = tuple(replace(part, kind=kind, keys=keys) for part in self._parts)
        return Stream(self._pipeline, parts, self._shape)

    def _columns(self, method: str) -> pa.Schema:
        """The columns, which a method needs."""
        if not self._shape.columns:
            names = ", ".join(
                f"`{part.name if isinstance(part, Derived) else part.node}`" for part in self._parts
            )
            raise PlanError(
                f"{method} needs the columns of the stream, and nothing says which {names} has",
                hint="pass `schema=` where the stream is made: "
                f"`{self._maker()}schema='id BIGINT, name TEXT')`",
            )
        return self._shape.columns

    def _maker(self) -> str:
        """The beginning of a call that makes such a stream, for hints."""
        parts = self._parts
        is_source = any(
            isinstance(part, Port) and self._pipeline._role(part.node) == "source" for part in parts
        )
        return "pipeline.source(…, " if is_source else ".map(f, "

    def _check_columns(self, names: Sequence[str], method: str) -> None:
        if not names and method == "drop":
            raise PlanError("drop takes the names of columns")
        if not names:
            return
        columns = self._columns(method)
        for name in names:
            if not isinstance(name, str):
                raise PlanError(
                    f"{method} takes the names of columns, got {name!r}", hint=_names_hint(method, name)
                )
            if name not in columns.names:
                raise PlanError.unknown(
                    f"{method}: there is no column `{name}`",
                    name=name,
                    candidates=columns.names,
                    listing="the columns are",
                )

    def _rows(self, method: str) -> Relational:
        """The stream as a table that queries read."""
        if len(self._parts) == 1 and isinstance(self._parts[0], Derived) and self._parts[0].kind == "forward":
            return self._parts[0].rows
        if self._readable is None:
            columns = self._columns(method)
            stream, shape = self, self._shape
            base = next(part.name if isinstance(part, Derived) else part.node for part in self._parts)
            if any(isinstance(part, Derived) for part in self._parts):
                stream = stream._behind(ForwardBatches(), f"{base}.forward", shape)
            if shape.is_declared:
                operator = ConformColumns(columns, f"`{base}`", updating=shape.updating)
                shape = replace(shape, is_declared=False)
                stream = stream._behind(operator, f"{base}.columns", shape)
            if not shape.has_watermark:
                shape = replace(shape, has_watermark=True)
                options = {"column": TIMESTAMP, "lateness": DEFAULT_LATENESS}
                stream = stream._behind("watermark", f"{base}.watermark", shape, options)
            ports = tuple(part for part in stream._parts if isinstance(part, Port))
            self._readable = Relational.of_ports(
                ports, columns, updating=shape.updating, key=shape.key, windowing=shape.windowing
            )
        return self._readable

    def _behind(
        self,
        operator: str | ArrowOperator,
        id: str,  # noqa: A002
        shape: StreamShape,
        options: Mapping[str, Any] | None = None,
    ) -> Stream:
        pipeline = self._pipeline
        unique = pipeline._unique_id(id)
        return pipeline._add("operator", operator, (self,), id=unique, options=options or {}, shape=shape)

    def _query(
        self,
        method: str,
        text: QueryText,
        expressions: Sequence[str],
        *,
        id: str | None,  # noqa: A002
        tables: Mapping[str, Stream] | None = None,
    ) -> Stream:
        for expression in expressions:
            piece = QueryText().expression(expression)
            with piece.explained():
                self._pipeline._sql.check_expression(piece.source)
        return self._pipeline._query(method, text, {"input": self, **(tables or {})}, id=id)


def _names_hint(method: str, value: object) -> str:
    """How names of columns are passed."""
    names = value if isinstance(value, list | tuple) else ["shop"]
    return f"one by one, as strings: `{method}({', '.join(map(repr, names))})`"


def derived_stream(pipeline: Pipeline, rows: Relational, name: str) -> Stream:
    """The stream of a query's rows."""
    shape = StreamShape(rows.columns, rows.updating, rows.key, rows.windowing, has_watermark=True)
    return Stream(pipeline, (Derived(rows, name, call_site()),), shape)


def _check_output(name: object, node: str, operator: ArrowOperator | SourceOperator) -> None:
    """Refuse the name of an output that the operator does not have, if it declares its outputs."""
    if name == "" or not isinstance(name, str):
        raise PlanError(f"output takes the name of an output, got {name!r}")
    outputs = operator.outputs
    if outputs is None or name in outputs:
        return
    message = f"`{node}` has no output `{name}`"
    options = getattr(operator, "options", None)
    if name == DEAD_LETTER and getattr(options, "bad_data", None) is not None:
        raise PlanError(message, hint="pass `bad_data='dead_letter'` to the source")
    hint = suggest(name, outputs, listing="its outputs are") if outputs else "it has only its default output"
    raise PlanError(message, hint=hint)


def _check_function(function: object, method: str, kind: str) -> None:
    if isinstance(function, type) and issubclass(function, ArrowOperator):
        hint = f"make an object of it for apply: `.apply({function.__name__}(…))`"
        raise PlanError(f"{method} takes a function, got the operator class {function.__name__}", hint=hint)
    if not callable(function) or isinstance(function, ArrowOperator):
        hint = f"an operator goes to `.apply(…)`; {method} takes a function {kind}"
        raise PlanError(f"{method} takes a function, got {type(function).__name__} {function!r}", hint=hint)
