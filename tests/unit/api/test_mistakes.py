"""Wrong arguments of the API are errors that say what is expected, and name the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.api import other_names
from headrace.testing.in_process import run_in_process

ROWS = [{"id": 1, "shop": "mill", "amount": 3}]


def other() -> hr.Stream:
    return hr.Pipeline("other").source("memory", rows=ROWS)


@hr.udf
def double(x: int) -> int:
    return x * 2


class Split(hr.ArrowOperator):
    """Has an output of its own besides the one that every operator has."""

    outputs = ("odd",)

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)


MISTAKES: dict[str, tuple[Callable[[hr.Stream], object], str]] = {
    "a window longer than a century": (lambda s: s.tumble("900000000d"), "`width` is at most 36500 days"),
    "a window longer than a timedelta": (lambda s: s.session("9999999999d"), "`gap` is at most 36500 days"),
    "within longer than a century": (
        lambda s: s.join(s.select("id"), on="id", within="40000d"),
        "`within` is at most 36500 days",
    ),
    "negative lateness": (
        lambda s: s.watermark(lateness=timedelta(seconds=-1)),
        "`lateness` must not be negative",
    ),
    "lateness that is no duration": (
        lambda s: s.watermark(lateness="x"),
        "`lateness` takes a duration, got 'x'",
    ),
    "a query over rows of which nothing says the columns": (
        lambda s: s.pipeline.source("memory", rows=[]).filter("a > 1"),
        "filter needs the columns of the stream",
    ),
    "a field of a struct as a column": (
        lambda s: s.tumble("1m").aggregate(n="count(*)").select(hr.col("window.start")),
        r"hr\.col\('window'\)\.field\('start'\)",
    ),
    "a number as a function": (lambda _: hr.Pipeline(udfs=[3]), "`udfs` takes functions made with @hr.udf"),  # type: ignore[list-item]
    "one file of functions that is missing": (
        lambda _: hr.Pipeline(udfs="missing.py"),
        "there is no file missing.py with functions",
    ),
    "an infinite literal": (lambda _: hr.lit(float("inf")), "SQL has no literal for float inf"),
    "a number as a sink": (
        lambda s: s.sink(3),  # type: ignore[arg-type]
        "sink: expected a name or an object of ArrowOperator, got int 3",
    ),
    "a number of rows to show that is a text": (
        lambda s: s.show("many"),  # type: ignore[arg-type]
        "show takes the number of rows to show, got 'many'",
    ),
    "a parallelism of zero": (
        lambda s: s.sink("blackhole").pipeline.start(parallelism=0),
        r"\[run\] parallelism must be greater than 0, got 0",
    ),
    "map of a number": (lambda s: s.map(3), "map takes a function, got int 3"),  # type: ignore[arg-type]
    "flat_map of nothing": (lambda s: s.flat_map(None), "flat_map takes a function, got NoneType"),  # type: ignore[arg-type]
    "flat_map per": (lambda s: s.flat_map(print, per="day"), "`per` is 'row' or 'batch'"),  # type: ignore[arg-type]
    "call of a lambda": (
        lambda s: s.call(lambda x: x, "id", into="y"),  # type: ignore[arg-type]
        "call takes a function made with @hr.udf",
    ),
    "apply of a function": (lambda s: s.apply(print), "apply takes an operator"),  # type: ignore[arg-type]
    "filter by a number": (lambda s: s.filter(5), "filter takes SQL expressions.*got int 5"),  # type: ignore[arg-type]
    "filter by a function": (
        lambda s: s.filter(lambda row: row["id"] > 1),  # type: ignore[arg-type]
        "got the function",
    ),
    "filter by nothing": (lambda s: s.filter(), "at least one condition"),
    "select of nothing": (lambda s: s.select(), "at least one column"),
    "two statements": (lambda s: s.filter("id > 1; SELECT 1"), "one SQL expression is expected"),
    "a statement of another kind": (lambda s: s.filter("id > 1; DROP TABLE x"), "DROP is not a statement"),
    "a clause": (lambda s: s.select("id FROM x"), "one SQL expression is expected"),
    "several expressions": (lambda s: s.select("id, shop"), "one SQL expression is expected"),
    "no name": (lambda s: s.with_columns(hr.col("id") + 1), "expressions with a name"),
    "unknown column": (lambda s: s.drop("amout"), "there is no column `amout`\n.*did you mean `amount`"),
    "all columns": (lambda s: s.drop("id", "shop", "amount"), "would leave no column"),
    "rename what is not there": (lambda s: s.rename(nam="n"), "no column `nam`"),
    "rename to one name": (lambda s: s.rename({"id": "shop"}), "two columns are called `shop`"),
    "key_by an expression": (lambda s: s.key_by(hr.col("id")), "names of columns"),  # type: ignore[arg-type]
    "key_by what is not there": (lambda s: s.key_by("sho"), "did you mean `shop`"),
    "a number without a unit": (lambda s: s.tumble("5"), "got '5'(.|\\n)*write `'5s'` for seconds"),
    "within a number": (
        lambda s: s.join(s.select("id"), on="id", within=5),  # type: ignore[arg-type]
        "`within` takes a duration, got 5(.|\\n)*write `'5s'` for seconds",
    ),
    "a stream that the query does not read": (
        lambda s: s.sql("SELECT id FROM input", sales=s.select("id")),
        "the query does not read the stream `sales`(.|\\n)*leave it out",
    ),
    "a stream under another name": (
        lambda s: s.pipeline.sql("SELECT 1 AS a FROM slaes", sales=s),
        "does not read the stream `sales`(.|\\n)*did you mean `slaes`",
    ),
    "a number of rows to show that is a condition": (lambda s: s.show(True), "rows to show, got True"),
    "options as a dict": (
        lambda s: s.pipeline.start(options={"restarts": 5}),  # type: ignore[arg-type]
        "got dict(.|\\n)*options=hr.RunOptions\\(restarts=5\\)",
    ),
    "an epoch without a state directory": (
        lambda s: s.sink("blackhole").pipeline.start(from_epoch=3, options=hr.RunOptions(engine="local")),
        "only a run with a state directory can go back to an epoch",
    ),
    "rows of two types": (
        lambda s: s.pipeline.source("memory", rows=[{"id": 1}, {"id": "x"}]),
        "do not fit one schema: column `id`: Could not convert 'x'",
    ),
    "not a duration": (lambda s: s.tumble("soon"), "`width` takes a duration, got 'soon'"),
    "two windows": (lambda s: s.tumble("1s").hop("1s", "2s"), "a window already"),
    "a slide too long": (
        lambda s: s.hop("2s", "1s").aggregate(n="count(*)"),
        "slides further than its width",
    ),
    "nothing aggregated": (lambda s: s.group_by("id").aggregate(), "at least one aggregate"),
    "a column that is no key": (
        lambda s: s.group_by("shop").aggregate(x="amount"),
        "^`amount` is neither grouped nor aggregated",
    ),
    "union of other columns": (lambda s: s.union(s.select("id")), "union of different columns"),
    "union of a list": (lambda s: s.union([s]), "union takes streams, got list"),  # type: ignore[arg-type]
    "join of another pipeline": (
        lambda s: s.join(other(), on="id"),
        "stream of pipeline `other` cannot be used",
    ),
    "join of rows": (lambda s: s.join(ROWS, on="id"), "join takes streams, got list"),  # type: ignore[arg-type]
    "join of what": (lambda s: s.join(s.select("id"), on=3), "`on` takes columns or a condition, got int 3"),  # type: ignore[arg-type]
    "a join of no kind": (
        lambda s: s.join(s.select("id"), on="id", how="lft"),  # type: ignore[arg-type]
        "`lft` is not a kind of join(.|\\n)*did you mean `left`",
    ),
    "join by what is not there": (lambda s: s.join(s, on="idd"), "this stream has no column `idd`"),
    "columns of both": (lambda s: s.join(s, on="id"), "both streams have a column `shop`"),
    "within what": (lambda s: s.join(s.select("id"), on="id", within="x"), "`within` takes a duration"),
    "watermark of a number": (lambda s: s.watermark("amount"), "is int64, not a timestamp"),
    "watermark of nothing": (lambda s: s.watermark("at"), "no column `at`"),
    "sql of two": (lambda s: s.sql("SELECT 1; SELECT 2"), "one SELECT is expected"),
    "sql over rows": (lambda s: s.sql("SELECT * FROM t", t=ROWS), "sql takes streams, got list"),  # type: ignore[arg-type]
    "as_table of no name": (lambda s: s.as_table("a b"), "`a b` cannot name a table"),
    "as_table twice": (lambda s: s.as_table("t").as_table("T"), "already a table or view called `t`"),
    "output of a query": (lambda s: s.filter("id > 1").output("x"), "no named outputs"),
    "no schema": (lambda s: s.map(lambda b: b).filter("id > 1"), "pass `schema=`"),
    "a schema that is none": (lambda s: s.map(lambda b: b, schema=3), "`schema` takes columns, got int 3"),
    "truth": (lambda s: s.filter(hr.col("id") and hr.col("shop")), "no truth value"),
    "a bad id": (lambda s: s.filter("id > 1", id="a/b"), "cannot be an id"),
    "an id twice": (
        lambda s: (s.filter("id > 1", id="a"), s.filter("id > 2", id="a")),
        "already an operator",
    ),
    "an insert": (lambda s: s.pipeline.execute("INSERT INTO t SELECT 1"), "INSERT is not a definition"),
    "no table": (lambda s: (s.as_table("sales"), s.pipeline.table("slaes")), "did you mean `sales`"),
    "options twice": (
        lambda s: s.sink(hr.sinks.memory(name="x"), name="y"),
        "options name were given with an object",
    ),
    "rename of a text": (lambda s: s.rename("id"), "rename takes a mapping of columns, got str 'id'"),  # type: ignore[arg-type]
    "rename of id by keyword": (
        lambda s: s.rename(id="order_id"),
        "`id` names the operator of rename(.|\\n)*rename\\({'id': 'new'}\\)",
    ),
    "select of id by keyword": (lambda s: s.select(id="amount"), "`id` names the operator of select"),
    "an expression for id": (
        lambda s: s.select("shop", id=hr.col("amount")),  # type: ignore[arg-type]
        "`id` names the operator of select(.|\\n)*select\\({'id': 'a \\+ b'}\\)",
    ),
    "select of id and others by keyword": (
        lambda s: s.select(price="amount", id="amount"),
        "`id` names the operator of select, and `amount` is a column",
    ),
    "with_columns of id by keyword": (
        lambda s: s.with_columns(id="amount"),
        "`id` names the operator of with_columns",
    ),
    "aggregate of id by keyword": (
        lambda s: s.group_by("shop").aggregate(id="max(id)"),
        "`id` names the operator of aggregate",
    ),
    "a stream called id": (
        lambda s: s.pipeline.sql("SELECT * FROM id", id=s),  # type: ignore[arg-type]
        "`id` names the operator of sql(.|\\n)*call the table in the query otherwise",
    ),
    "sql of nothing": (lambda s: s.sql(None), "sql takes a SELECT, got NoneType"),  # type: ignore[arg-type]
    "as_table of a number": (lambda s: s.as_table(3), "as_table takes the name of a table, got int 3"),  # type: ignore[arg-type]
    "an id that is a number": (lambda s: s.filter("id > 1", id=3), "is a string, got int 3"),  # type: ignore[arg-type]
    "an id of an operator that is a number": (
        lambda s: s.map(lambda b: b, id=3),  # type: ignore[arg-type]
        "is a string, got int 3",
    ),
    "a pipeline called 3": (lambda _: hr.Pipeline(3), "the name of a pipeline is a string, got int 3"),  # type: ignore[arg-type]
    "on_progress of a number": (
        lambda s: (s.sink("blackhole"), s.pipeline.run(on_progress=3)),  # type: ignore[arg-type]
        "`on_progress` takes a function, got int 3",
    ),
    "start in a number": (
        lambda s: (s.sink("blackhole"), s.pipeline.start(3)),  # type: ignore[arg-type]
        "`state_dir` takes a path, got int 3",
    ),
    "cast to a class": (lambda _: hr.col("id").cast(int), "cast takes a type of SQL, got <class 'int'>"),  # type: ignore[arg-type]
    "select of a list": (
        lambda s: s.select(["id", "shop"]),  # type: ignore[arg-type]
        "one by one, got list(.|\\n)*write `select\\('id', 'shop'\\)`",
    ),
    "group_by of a list": (
        lambda s: s.group_by(["shop"]),  # type: ignore[arg-type]
        "one by one, got list(.|\\n)*write `group_by\\('shop'\\)`",
    ),
    "map of a class": (lambda s: s.map(hr.ArrowOperator), "the operator class ArrowOperator"),  # type: ignore[arg-type]
    "explain in no format": (
        lambda s: (s.sink("blackhole"), s.pipeline.explain("jsn")),  # type: ignore[arg-type]
        "did you mean `json`",
    ),
    "join of text and number": (
        lambda s: s.join(s.select(other_shop="shop"), on={"id": "other_shop"}),
        "never equal: `id` is BIGINT and `other_shop` is TEXT",
    ),
    "call with a column that is not there": (
        lambda s: s.call(double, "amunt", into="y"),
        "no column `amunt`(.|\\n)*did you mean `amount`",
    ),
    "an id that was generated": (
        lambda s: (s.filter("id > 1"), s.filter("id > 2", id="filter_1")),
        "already an operator with the id `filter_1`",
    ),
    "output of a source": (
        lambda s: s.output("no_such"),
        "`memory_1` has no output `no_such`(.|\\n)*it has only its default output",
    ),
    "an output that is like another": (
        lambda s: s.pipeline.source("single_file", path="x.json", bad_data="dead_letter").output(
            "dead_leter"
        ),
        "no output `dead_leter`(.|\\n)*did you mean `dead_letter`",
    ),
    "dead letters of a source that fails": (
        lambda s: s.pipeline.source("single_file", path="x.json").output("dead_letter"),
        "no output `dead_letter`(.|\\n)*pass `bad_data='dead_letter'`",
    ),
    "output of a map": (lambda s: s.map(lambda b: b).output("late"), "`map_1` has no output `late`"),
    "output of no name": (lambda s: s.output(3), "takes the name of an output, got 3"),  # type: ignore[arg-type]
    "an output that an operator does not declare": (
        lambda s: s.apply(Split()).output("odds"),
        "no output `odds`(.|\\n)*did you mean `odd`",
    ),
    "a type that is none": (
        lambda s: s.map(lambda b: b, schema="id BIGINT, name TEXXT"),
        "there is no type `texxt`|TEXXT",
    ),
    "a type of a mapping": (
        lambda s: s.map(lambda b: b, schema={"id": "BIGNT"}),
        "BIGNT|bignt",
    ),
    "a schema of a typed source": (
        lambda s: s.pipeline.source(hr.sources.single_file(path="x.json", schema="id BIGNT")),
        "BIGNT|bignt",
    ),
    "an option of a typed source": (
        lambda s: s.pipeline.source(hr.sources.impulse(event_rate="fast")),  # type: ignore[arg-type]
        "event_rate",
    ),
    "col of a number": (lambda s: s.filter(hr.col(3) > 2), "col takes the name of a column, got 3"),  # type: ignore[arg-type]
    "a value that is no literal": (lambda s: s.filter(hr.col("id") == object()), "object"),
    "none": (lambda s: s.filter(hr.col("id") == None), "`=` with None is never true"),  # noqa: E711
    "an alias that is none": (lambda s: s.select(hr.col("id").alias("")), "alias takes the name"),
    "a function of an object": (lambda s: s.select(hr.fn.upper(object())), "object"),
    "run options": (
        lambda s: (s.sink("blackhole"), s.pipeline.run(options={"restarts": 1})),  # type: ignore[arg-type]
        "hr.RunOptions",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_words(mistake: str) -> None:
    make, expected = MISTAKES[mistake]
    with pytest.raises(hr.UserError) as caught:
        make(hr.Pipeline("mistakes").source("memory", rows=ROWS))
    # Not the whole text of the error: it shows the line of the call, which holds the expected words too.
    assert re.search(expected, f"{caught.value.message}\n{caught.value.hint}")
    assert Path(__file__).name in str(caught.value.where)


def test_an_error_in_an_expression_names_the_line_of_the_program_and_points_into_the_expression() -> None:
    sales = hr.Pipeline().source("memory", rows=ROWS)
    with pytest.raises(hr.SqlError) as caught:
        sales.select("shop", double="amont * 2")
    assert caught.value.where is not None
    assert caught.value.where.endswith('sales.select("shop", double="amont * 2")')
    assert Path(__file__).name in caught.value.where
    assert caught.value.excerpt == "  1 | amont * 2\n    | ^^^^^"
    assert caught.value.hint == "did you mean `amount`?"


def test_an_error_in_a_schema_names_the_line_of_the_program_and_points_into_the_schema() -> None:
    sales = hr.Pipeline().source("memory", rows=ROWS)
    with pytest.raises(hr.SqlError) as caught:
        sales.map(lambda batch: batch, schema="id BIGINT, shop TEXXT")
    assert 'sales.map(lambda batch: batch, schema="id BIGINT, shop TEXXT")' in str(caught.value.where)
    assert caught.value.excerpt == "  1 | id BIGINT, shop TEXXT\n    |                 ^^^^^"


def test_all_errors_of_the_expressions_of_a_call_are_told_at_once() -> None:
    sales = hr.Pipeline().source("memory", rows=ROWS)
    with pytest.raises(hr.SqlError) as caught:
        sales.select("shp", "amont")
    assert "shp" in str(caught.value)
    assert "amont" in str(caught.value)


def test_an_error_in_sql_shows_its_line() -> None:
    sales = hr.Pipeline().source("memory", rows=ROWS)
    with pytest.raises(hr.SqlError) as caught:
        sales.sql(
            """SELECT id,
                      shp
               FROM input"""
        )
    assert "2 |                       shp" in caught.value.excerpt
    assert Path(__file__).name in str(caught.value.where)


def test_an_error_of_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "flow_of_expressions.py"
    file.write_text(
        "import headrace as hr\n"
        "pipeline = hr.Pipeline('f')\n"
        "pipeline.source('memory', rows=[{'id': 1}]).filter('idd > 1').sink('blackhole')\n"
    )
    with pytest.raises(hr.SqlError) as caught:
        hr.load_pipeline(str(file))
    assert "line 3: pipeline.source" in str(caught.value)


def test_a_misspelt_argument_of_run_is_told_as_one_of_run() -> None:
    pipeline = hr.Pipeline("orders")
    with pytest.raises(TypeError, match=r"Pipeline\.run\(\) got an unexpected keyword .* 'paralelism'"):
        pipeline.run(paralelism=2)  # type: ignore[call-arg]


def test_public_classes_have_no_internal_methods() -> None:
    for name in ("add", "check_own"):
        assert not hasattr(hr.Pipeline, name)
    assert "on_step" not in hr.Pipeline.run.__annotations__
    assert len(hr.Pipeline.run.__annotations__) <= 13


def test_a_sink_is_refused_where_a_source_is_expected_and_a_source_as_a_sink() -> None:
    configured: Any = hr.sinks.kafka(topic="orders", bootstrap_servers="localhost:9092")
    with pytest.raises(hr.PlanError, match="source takes a source, got the sink `kafka`") as caught:
        hr.Pipeline().source(configured)
    assert caught.value.hint == "make it with `hr.sources.kafka(…)`"
    source: Any = hr.sources.impulse(event_rate=1)
    with pytest.raises(hr.PlanError, match="sink takes a sink, got the source `impulse`") as caught:
        hr.Pipeline().source("memory", rows=ROWS).sink(source)
    assert caught.value.hint is None


def test_a_table_that_nothing_reads_is_refused_with_a_wrong_option() -> None:
    with pytest.raises(hr.SqlError) as caught:
        hr.Pipeline().execute("CREATE TABLE t (id BIGINT) WITH (connector = 'single_file', pth = 'x')")
    messages = [caught.value.message, *(error.message for error in caught.value.more)]
    assert any("did you mean `path`?" in message for message in messages)
    assert Path(__file__).name in str(caught.value.where)


def test_a_misspelt_column_object_gets_the_near_name() -> None:
    with pytest.raises(hr.SqlError) as caught:
        hr.Pipeline().source("memory", rows=ROWS).filter(hr.col("amuont") > 2)
    assert "did you mean `amount`?" in str(caught.value.hint)


def test_a_column_object_that_is_no_column_gets_the_names_of_those_there_are() -> None:
    with pytest.raises(hr.SqlError) as caught:
        hr.Pipeline().source("memory", rows=[{"id": 1, "shop": "mill"}]).filter(hr.col("x") > 2)
    assert "the columns are `id`, `shop`" in str(caught.value.hint)


def test_an_unknown_function_says_how_those_of_the_user_come_in() -> None:
    sales = hr.Pipeline().source("memory", rows=ROWS)
    calls: list[Callable[[], object]] = [
        lambda: sales.select(x="my_own(amount)"),
        lambda: sales.sql("SELECT my_own(amount) FROM input"),
    ]
    for call in calls:
        with pytest.raises(hr.SqlError, match="there is no function `my_own`") as caught:
            call()
        assert "udfs=" in str(caught.value.hint)


def test_union_needs_another_stream() -> None:
    with pytest.raises(hr.PlanError, match="union takes at least one other stream"):
        hr.Pipeline().source("memory", rows=ROWS).union()


def test_names_and_values_in_a_list_are_told_to_come_one_by_one() -> None:
    sales = hr.Pipeline().source("memory", rows=ROWS)
    with pytest.raises(hr.PlanError) as caught:
        sales.drop(["shop", "id"])  # type: ignore[arg-type]
    assert caught.value.hint == "one by one, as strings: `drop('shop', 'id')`"
    with pytest.raises(hr.PlanError, match="is_in takes its values one by one"):
        sales.filter(hr.col("id").is_in([1, 2]))


def test_a_schema_with_a_column_that_is_no_name_is_refused() -> None:
    schema: Any = {3: "BIGINT"}
    with pytest.raises(hr.PlanError, match="`schema` takes the names of columns, got 3"):
        hr.Pipeline().source("memory", rows=ROWS).map(lambda batch: batch, schema=schema)


def test_a_source_without_columns_is_told_to_declare_them_at_the_source() -> None:
    source = hr.Pipeline().source("single_file", path="orders.json")
    with pytest.raises(hr.PlanError) as caught:
        source.filter("id > 1")
    assert "`pipeline.source(…, schema=" in str(caught.value.hint)
    with pytest.raises(hr.PlanError) as caught:
        source.map(lambda batch: batch).filter("id > 1")
    assert "`.map(f, schema=" in str(caught.value.hint)


def test_a_recording_goes_to_a_path() -> None:
    with pytest.raises(hr.PlanError, match="`directory` takes a path, got int 3"):
        hr.Pipeline().record(3)  # type: ignore[arg-type]


def test_a_stream_is_not_a_pipeline_that_runs(tmp_path: Path) -> None:
    stream: Any = hr.Pipeline().source("memory", rows=ROWS).sink("blackhole")
    with pytest.raises(hr.PlanError, match="`pipeline` takes a pipeline, got Stream"):
        run_in_process(stream, tmp_path)


def test_a_value_that_a_function_cannot_take_is_an_error_of_the_column(tmp_path: Path) -> None:
    @hr.udf
    def double(x: int) -> int:
        return x * 2

    pipeline = hr.Pipeline()
    pipeline.source("memory", rows=ROWS).call(double, "shop", into="twice").sink("blackhole")
    with pytest.raises(hr.HeadraceError, match="column `shop` cannot become the int64") as caught:
        run_in_process(pipeline, tmp_path)
    assert "Traceback" not in str(caught.value)


def test_a_table_that_an_operator_does_not_declare_is_no_bug_of_ours(tmp_path: Path) -> None:
    class Forgetful(hr.ArrowOperator):
        def process_batch(
            self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector
        ) -> None:
            ctx.keyed_table("totals")

    pipeline = hr.Pipeline()
    pipeline.source("memory", rows=ROWS).apply(Forgetful(), id="forgetful").sink("blackhole")
    with pytest.raises(hr.PlanError, match="`forgetful` declares no table `totals`"):
        run_in_process(pipeline, tmp_path)


ATTRIBUTES: dict[str, tuple[Callable[[hr.Stream], object], str]] = {
    "a method of PySpark": (lambda s: getattr(s, "where"), r"'where': write `filter\(…\)`"),  # noqa: B009
    "a column": (lambda s: getattr(s, "amount"), r"'amount': write `hr.col\('amount'\)` for the column"),  # noqa: B009
    "an aggregate": (
        lambda s: getattr(s.group_by("shop"), "count"),  # noqa: B009
        r"'count': write `aggregate\(n='count\(\*\)'\)`",
    ),
    "a method of a column": (
        lambda _: getattr(hr.col("id"), "isin"),  # noqa: B009
        r"'isin': write `is_in\('a', 'b'\)`",
    ),
    "a source": (lambda s: getattr(s.pipeline, "readStream"), r"'readStream': write `source\('kafka', …\)`"),  # noqa: B009
    "no name of anybody": (lambda s: getattr(s, "frobnicate"), "no attribute 'frobnicate'$"),  # noqa: B009
}


@pytest.mark.parametrize("mistake", ATTRIBUTES)
def test_a_name_of_another_library_says_what_it_is_called_here(mistake: str) -> None:
    read, expected = ATTRIBUTES[mistake]
    with pytest.raises(AttributeError, match=expected):
        read(hr.Pipeline().source("memory", rows=ROWS))


def test_what_is_written_instead_of_a_name_of_another_library_exists() -> None:
    owners = {"Pipeline": hr.Pipeline, "Stream": hr.Stream, "GroupedStream": hr.GroupedStream}
    for kind, names in other_names.NAMES.items():
        owner = owners.get(kind, hr.Column)
        for name, instead in names.items():
            assert not hasattr(owner, name), f"{kind}.{name} exists"
            for called in re.findall(r"(?<![.\w])([a-z_]+)\(", instead.partition("'")[0]):
                assert hasattr(owner, called), f"{kind}.{name}: {called}"


ARGUMENTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "an option of a source": (
        lambda _: hr.sources.kafka(bootstrap_server="x", topic="t"),  # type: ignore[call-arg]
        r"^kafka\(\) got .* 'bootstrap_server': did you mean `bootstrap_servers`\?",
    ),
    "an option of a run": (
        lambda _: hr.RunOptions(restart=1),  # type: ignore[call-arg]
        r"'restart': did you mean `restarts`\?",
    ),
    "an argument of start": (
        lambda s: s.pipeline.start(max_epoch=1),
        r"^Pipeline.start\(\) got .* 'max_epoch': did you mean `max_epochs`",
    ),
    "an argument of run": (
        lambda s: s.pipeline.run(max_epoch=1),
        r"^Pipeline.run\(\) got .* 'max_epoch': did you mean `max_epochs`",
    ),
    "an argument of a method": (
        lambda s: s.join(s, on="id", witin="1s"),
        r"'witin': did you mean `within`\?",
    ),
}


@pytest.mark.parametrize("mistake", ARGUMENTS)
def test_a_misspelt_argument_suggests_the_right_one(mistake: str) -> None:
    call, expected = ARGUMENTS[mistake]
    with pytest.raises(TypeError, match=expected):
        call(hr.Pipeline().source("memory", rows=ROWS))


def test_an_error_shows_the_beginning_of_a_long_value() -> None:
    rows: list[dict[str, object]] = [{"id": number} for number in range(10_000)]
    with pytest.raises(hr.ConfigurationError) as caught:
        hr.Pipeline().source("memory", rows=[*rows, {"id": "x"}])
    assert "{'id': 4}, … (10,001 items)]" in caught.value.message
    with pytest.raises(hr.ConfigurationError) as caught:
        hr.Pipeline().source("memory", rows="x" * 10_000)
    assert len(caught.value.message) < 400
