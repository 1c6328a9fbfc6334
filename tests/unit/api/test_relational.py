"""Relational methods of streams mean what the same SQL means."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process

SALES: list[dict[str, Any]] = [
    {"id": 1, "shop": "mill", "amount": 3, "_timestamp": "2026-01-01T09:00:00"},
    {"id": 2, "shop": "weir", "amount": 5, "_timestamp": "2026-01-01T09:00:10"},
    {"id": 3, "shop": "mill", "amount": 4, "_timestamp": "2026-01-01T09:00:50"},
    {"id": 4, "shop": "mill", "amount": 1, "_timestamp": "2026-01-01T09:01:10"},
]
PAID = [
    {"order_id": 1, "paid": 3, "_timestamp": "2026-01-01T09:00:05"},
    {"order_id": 3, "paid": 4, "_timestamp": "2026-01-01T10:00:00"},
    {"order_id": 9, "paid": 9, "_timestamp": "2026-01-01T10:00:00"},
]
LATER = datetime.fromisoformat("2030-01-01T00:00:00")
Build = Callable[[hr.Stream, hr.Stream], hr.Stream]


def rows_of(stream: hr.Stream, state_dir: Path, **options: Any) -> list[dict[str, Any]]:
    """What the stream comes to: its rows without event time, those taken back left out, in order."""
    stream.sink("memory", name="out")
    table = run_in_process(stream.pipeline, state_dir, **options).rows["out"]
    left: list[dict[str, Any]] = []
    for row in table.to_pylist():
        row.pop("_timestamp", None)
        if row.pop("_retract", False):
            left.remove(row)
        else:
            left.append(row)
    return sorted(left, key=repr)


def inputs() -> tuple[hr.Stream, hr.Stream]:
    """Sales and payments of one pipeline; what reads neither may leave them unread."""
    pipeline = hr.Pipeline("relational")
    sales = pipeline.source("memory", rows=SALES, id="sales").sink("blackhole")
    return sales, pipeline.source("memory", rows=PAID, id="paid").sink("blackhole")


CASES: dict[str, tuple[Build, str]] = {
    "filter by text": (lambda s, _: s.filter("amount > 3"), "SELECT * FROM s WHERE amount > 3"),
    "filter by object": (
        lambda s, _: s.filter((hr.col("amount") > 3) & (hr.col("shop") == "mill")),
        "SELECT * FROM s WHERE amount > 3 AND shop = 'mill'",
    ),
    "several conditions": (
        lambda s, _: s.filter("amount > 1 -- more than one", "shop = 'weir' OR id = 3"),
        "SELECT * FROM s WHERE amount > 1 AND (shop = 'weir' OR id = 3)",
    ),
    "select": (
        lambda s, _: s.select("shop", "amount * 2 AS double", hr.fn.upper("shop").alias("loud"), n="id + 1"),
        "SELECT shop, amount * 2 AS double, upper(shop) AS loud, id + 1 AS n FROM s",
    ),
    "select all": (lambda s, _: s.select("*", one="1"), "SELECT *, 1 AS one FROM s"),
    "with_columns": (
        lambda s, _: s.with_columns(hr.lit("x").alias("x"), shop="upper(shop)", double=hr.col("amount") * 2),
        "SELECT id, upper(shop) AS shop, amount, 'x' AS x, amount * 2 AS double FROM s",
    ),
    "drop": (lambda s, _: s.drop("id", "amount"), "SELECT shop FROM s"),
    "rename": (
        lambda s, _: s.rename({"id": "number"}, amount="price"),
        "SELECT id AS number, shop, amount AS price FROM s",
    ),
    "distinct": (lambda s, _: s.select("shop").distinct(), "SELECT DISTINCT shop FROM s"),
    "union": (
        lambda s, p: s.select(k="id").union(p.select(k="order_id").filter("k > 1")),
        "SELECT id AS k FROM s UNION ALL SELECT order_id FROM p WHERE order_id > 1",
    ),
    "aggregate": (
        lambda s, _: s.group_by("shop").aggregate(n="count(*)", total=hr.fn.sum("amount")),
        "SELECT shop, count(*) AS n, sum(amount) AS total FROM s GROUP BY shop",
    ),
    "aggregate of all": (
        lambda s, _: s.group_by().aggregate("max(amount) AS m"),
        "SELECT max(amount) AS m FROM s",
    ),
    "group by an expression": (
        lambda s, _: s.group_by((hr.col("amount") % 2).alias("odd")).aggregate(n=hr.fn.count()),
        "SELECT amount % 2 AS odd, count(*) AS n FROM s GROUP BY 1",
    ),
    "tumble": (
        lambda s, _: s.group_by("shop").tumble("1m").aggregate(n="count(*)"),
        "SELECT shop, tumble(interval '1 minute') AS window, count(*) AS n FROM s GROUP BY shop, window",
    ),
    "hop": (
        lambda s, _: s.hop(timedelta(seconds=30), "1m").aggregate(n="count(*)"),
        "SELECT hop(interval '30 seconds', interval '1 minute') AS window, count(*) AS n FROM s GROUP BY 1",
    ),
    "session": (
        lambda s, _: s.group_by("shop").session("30s").aggregate(n="count(*)"),
        "SELECT shop, session(interval '30 seconds') AS window, count(*) AS n FROM s GROUP BY 1, 2",
    ),
    "windows of windows": (
        lambda s, _: (
            s.group_by("shop")
            .tumble("1m")
            .aggregate(n="count(*)")
            .group_by("window")
            .aggregate(most="max(n)")
        ),
        (
            "SELECT window, max(n) AS most FROM (SELECT shop, tumble('1 minute') AS window, count(*) AS n "
            "FROM s GROUP BY 1, 2) GROUP BY window"
        ),
    ),
    "rename of id": (
        lambda s, _: s.rename({"id": "order_id"}),
        "SELECT id AS order_id, shop, amount FROM s",
    ),
    "a column called id": (
        lambda s, _: s.with_columns({"id": "amount * 2"}).select("shop", {"id": hr.col("id") + 1}),
        "SELECT shop, amount * 2 + 1 AS id FROM s",
    ),
    "an aggregate called id": (
        lambda s, _: s.group_by("shop").aggregate({"id": "max(id)"}, n="count(*)"),
        "SELECT shop, max(id) AS id, count(*) AS n FROM s GROUP BY shop",
    ),
    "outer join": (
        lambda s, p: s.join(p, on={"id": "order_id"}, how="outer"),
        "SELECT * FROM s FULL JOIN p ON s.id = p.order_id",
    ),
    "join by equal and different names": (
        lambda s, p: s.join(
            p.rename({"order_id": "id", "paid": "price"}), on={"id": "id", "amount": "price"}
        ),
        "SELECT s.id, shop, amount, paid AS price FROM s JOIN p ON s.id = p.order_id AND amount = paid",
    ),
    "full join by equal and different names": (
        lambda s, p: s.join(
            p.rename({"order_id": "id", "paid": "price"}), on={"id": "id", "amount": "price"}, how="full"
        ),
        (
            "SELECT coalesce(s.id, p.order_id) AS id, shop, amount, paid AS price "
            "FROM s FULL JOIN p ON s.id = p.order_id AND amount = paid"
        ),
    ),
    "cast of an alias": (
        lambda s, _: s.select(hr.col("amount").alias("price").cast("DOUBLE")),
        "SELECT CAST(amount AS DOUBLE) AS price FROM s",
    ),
    "join by name": (
        lambda s, p: s.join(p.rename(order_id="id"), on="id"),
        "SELECT * FROM s JOIN (SELECT order_id AS id, paid FROM p) AS p USING (id)",
    ),
    "join by mapping": (
        lambda s, p: s.join(p, on={"id": "order_id"}),
        "SELECT * FROM s JOIN p ON s.id = p.order_id",
    ),
    "join by condition": (
        lambda s, p: s.join(p, on="input.id = other.order_id AND other.paid > 3"),
        "SELECT * FROM s JOIN p ON s.id = p.order_id AND p.paid > 3",
    ),
    "join by objects": (
        lambda s, p: s.join(p, on=hr.col("id", table="input") == hr.col("order_id", table="other")),
        "SELECT * FROM s JOIN p ON s.id = p.order_id",
    ),
    "left join": (
        lambda s, p: s.join(p, on={"id": "order_id"}, how="left"),
        "SELECT * FROM s LEFT JOIN p ON s.id = p.order_id",
    ),
    "full join": (
        lambda s, p: s.join(p.rename(order_id="id"), on=["id"], how="full"),
        "SELECT * FROM s FULL JOIN (SELECT order_id AS id, paid FROM p) AS p USING (id)",
    ),
    "sql over a stream": (
        lambda s, _: s.sql("SELECT shop FROM input WHERE id = 2"),
        "SELECT shop FROM s WHERE id = 2",
    ),
    "sql over two": (
        lambda s, p: s.sql("SELECT shop, paid FROM input, pay WHERE id = order_id", pay=p),
        "SELECT shop, paid FROM s, p WHERE id = order_id",
    ),
    "after key_by": (
        lambda s, _: s.filter("amount > 1").key_by("shop").filter("amount > 3"),
        "SELECT * FROM s WHERE amount > 3",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_method_gives_what_the_same_sql_gives(case: str, tmp_path: Path) -> None:
    build, query = CASES[case]
    by_method = build(*inputs())
    sales, paid = inputs()
    read: dict[str, Any] = {"s": sales, "p": paid} if " p " in f"{query} " else {"s": sales}
    by_sql = sales.pipeline.sql(query, **read)
    assert by_method.schema is not None
    assert by_method.schema == by_sql.schema
    assert by_method.is_updating == by_sql.is_updating
    expected = rows_of(by_sql, tmp_path / "sql", parallelism=1)
    assert rows_of(by_method, tmp_path / "method") == expected
    assert expected != []


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("sum(amount)", "sum(amount)"),
        ("address.city", "city"),
        ("input.address.city", "city"),
        ("(address).city", "city"),
        ("address.place.lat", "lat"),
        ('address."ZIP"', "ZIP"),
        ("input.amount", "amount"),
        ("amount * 2", "amount * 2"),
    ],
)
def test_a_column_without_a_name_is_named_by_its_sql_and_a_field_by_itself(item: str, name: str) -> None:
    address = {"city": "Bath", "ZIP": "1", "place": {"lat": 51.4}}
    rows = hr.Pipeline("fields").source("memory", rows=[{"amount": 1, "address": address}])
    for stream in (rows.select(item), rows.sql(f"SELECT {item} FROM input")):
        assert stream.schema is not None
        assert stream.schema.names == [name]


def test_rows_are_partners_only_if_their_times_are_near(tmp_path: Path) -> None:
    sales, paid = inputs()
    near = sales.join(paid, on={"id": "order_id"}, within="1m").select("id", "paid")
    assert rows_of(near, tmp_path) == [{"id": 1, "paid": 3}]


@pytest.mark.parametrize(("how", "ids"), [("inner", [1]), ("left", [1, 2, 3, 4]), ("right", [1, 3, 9])])
def test_a_join_of_near_rows_keeps_the_others_as_its_kind_says(
    how: Any, ids: list[int], tmp_path: Path
) -> None:
    sales, paid = inputs()
    joined = sales.join(paid.rename(order_id="id"), on="id", how=how, within="1m")
    assert sorted(row["id"] for row in rows_of(joined, tmp_path)) == ids


def test_methods_in_a_row_become_one_operator() -> None:
    pipeline = hr.Pipeline("one")
    rows = pipeline.source("memory", rows=SALES)
    rows.filter("amount > 1").with_columns(double="amount * 2").select("shop", "double").sink("blackhole")
    ids = [node.id for node in pipeline.plan().nodes]
    assert ids == ["memory_1", "memory_1.watermark", "select_1.project", "blackhole_1"]


def test_state_is_called_after_the_method_that_needs_it_whatever_follows() -> None:
    def tables(build: Callable[[hr.Stream], hr.Stream]) -> list[str]:
        pipeline = hr.Pipeline("names")
        build(pipeline.source("memory", rows=SALES)).sink("blackhole")
        return [node.id for node in pipeline.plan().nodes if node.tables]

    assert tables(lambda s: s.group_by("shop").tumble("1m").aggregate(n="count(*)")) == ["aggregate_1.tumble"]
    assert tables(lambda s: s.group_by("shop").tumble("1m").aggregate(n="count(*)").select("n")) == [
        "aggregate_1.tumble"
    ]
    assert tables(
        lambda s: s.group_by("shop").tumble("1m").aggregate(n="count(*)", id="shops").drop("shop")
    ) == ["shops.tumble"]


def test_what_two_streams_read_is_computed_once() -> None:
    pipeline = hr.Pipeline("shared")
    totals = pipeline.source("memory", rows=SALES).group_by("shop").tumble("1m").aggregate(n="count(*)")
    totals.filter("n > 1").sink("blackhole")
    totals.select("shop").sink("blackhole")
    assert [node.id for node in pipeline.plan().nodes if node.tables] == ["aggregate_1.tumble"]


def test_streams_sql_and_operators_mix(tmp_path: Path) -> None:
    (tmp_path / "shops.json").write_text('{"shop": "mill", "city": "Bath"}\n')
    pipeline = hr.Pipeline("mixed")
    pipeline.execute(
        f"""CREATE TABLE shops (shop TEXT, city TEXT)
            WITH (connector = 'single_file', path = '{tmp_path}/shops.json');
            CREATE VIEW cities AS SELECT DISTINCT city FROM shops;"""
    )
    sales = pipeline.source("memory", rows=SALES)
    doubled = sales.map(lambda batch: batch, schema=sales.schema).with_columns(amount="amount * 2")
    doubled.as_table("Doubled")
    assert pipeline.table("cities").is_updating
    joined = pipeline.sql("SELECT city, amount FROM doubled JOIN shops ON doubled.shop = shops.shop")
    assert rows_of(joined, tmp_path / "state") == [
        {"city": "Bath", "amount": 2},
        {"city": "Bath", "amount": 6},
        {"city": "Bath", "amount": 8},
    ]


def test_a_run_that_was_stopped_goes_on_with_the_state_of_its_methods(tmp_path: Path) -> None:
    def build() -> hr.Stream:
        sales, _ = inputs()
        return sales.group_by("shop").tumble("1m").aggregate(n="count(*)").select("shop", "n")

    first = build()
    first.sink("memory", name="out")
    run_in_process(first.pipeline, tmp_path, epoch_rows=2, max_epochs=1)
    assert rows_of(build(), tmp_path, parallelism=3) == [
        {"shop": "mill", "n": 1},
        {"shop": "mill", "n": 2},
        {"shop": "weir", "n": 1},
    ]


def test_a_stream_without_a_watermark_gets_that_of_a_table_without_one() -> None:
    sales, _ = inputs()
    sales.filter("id > 0").sink("blackhole")
    assert "watermark(_timestamp - 1s)" in sales.pipeline.explain()
    sales, _ = inputs()
    sales.watermark(lateness="5s").filter("id > 0").sink("blackhole")
    assert "watermark(_timestamp - 5s)" in sales.pipeline.explain()
    assert "watermark(_timestamp - 1s)" not in sales.pipeline.explain()


def test_functions_of_the_user_are_called_in_expressions(tmp_path: Path) -> None:
    @hr.udf
    def shout(text: str) -> str:
        return text.upper() + "!"

    pipeline = hr.Pipeline("functions", udfs=[shout])
    loud = pipeline.source("memory", rows=SALES).filter("id = 1").select(loud=hr.fn.shout("shop"))
    assert rows_of(loud, tmp_path) == [{"loud": "MILL!"}]


def test_a_call_keeps_the_columns_known(tmp_path: Path) -> None:
    @hr.udf
    def double(x: int) -> int:
        return x * 2

    sales = hr.Pipeline().source("memory", rows=SALES)
    doubled = sales.call(double, "amount", into="twice").filter("twice > 8").select("twice")
    assert rows_of(doubled, tmp_path) == [{"twice": 10}]


def test_flat_map_makes_rows_of_rows_and_of_batches(tmp_path: Path) -> None:
    lines = [{"line": "a b"}, {"line": ""}, {"line": "c"}]
    by_row = (
        hr.Pipeline()
        .source("memory", rows=lines)
        .flat_map(lambda row: ({"word": word} for word in row["line"].split()), schema="word TEXT")
    )
    assert rows_of(by_row.filter("word <> 'b'"), tmp_path / "row") == [{"word": "a"}, {"word": "c"}]
    by_batch = hr.Pipeline().source("memory", rows=lines).flat_map(lambda batch: [batch, batch], per="batch")
    assert len(rows_of(by_batch, tmp_path / "batch")) == 6


def test_a_row_of_flat_map_has_the_event_time_of_its_row_or_its_own(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    rows = pipeline.source("memory", rows=SALES[:2]).flat_map(
        lambda row: [{"n": 1}, {"n": 2, "_timestamp": LATER}] if row["id"] == 1 else []
    )
    rows.sink("memory", name="out")
    table = run_in_process(pipeline, tmp_path).rows["out"]
    times = {row["n"]: row["_timestamp"].to_pydatetime() for row in table.to_pylist()}
    assert times == {1: datetime.fromisoformat(SALES[0]["_timestamp"]), 2: LATER}


def test_rows_that_do_not_fit_a_declared_schema_end_the_run_with_words(tmp_path: Path) -> None:
    sales = hr.Pipeline().source("memory", rows=SALES)
    mapped = sales.map(lambda batch: batch.drop_columns(["shop"]), schema=sales.schema, id="cut")
    with pytest.raises(hr.HeadraceError, match="the rows of `cut` have no column `shop`"):
        rows_of(mapped.filter("id > 0"), tmp_path)


def test_an_updating_result_goes_where_changes_can_be_written(tmp_path: Path) -> None:
    sales = hr.Pipeline().source("memory", rows=SALES)
    counts = sales.group_by("shop").aggregate(n="count(*)")
    out = str(tmp_path / "out.json")
    with pytest.raises(hr.PlanError, match="`single_file` cannot take an updating stream") as caught:
        counts.sink("single_file", path=out)
    assert "debezium_json" in str(caught.value)
    counts.sink("single_file", path=out, format="debezium_json")
    counts.sink("memory", name="out")
    run_in_process(counts.pipeline, tmp_path / "state")
    assert '"after":{"shop":"mill","n":3}' in Path(out).read_text()


def test_a_source_of_changes_is_updating() -> None:
    pipeline = hr.Pipeline()
    source = pipeline.source(
        "single_file",
        path="in.json",
        format="debezium_json",
        schema="id BIGINT, n BIGINT",
        primary_key=["id"],
    )
    assert source.is_updating
    assert source.filter("n > 1").is_updating


@pytest.mark.parametrize(
    "schema",
    [
        "id BIGINT, name TEXT",
        {"id": "BIGINT", "name": "TEXT"},
        {"id": "int64", "name": pa.string()},
        pa.schema([("id", pa.int64()), ("name", pa.string())]),
    ],
)
def test_a_schema_is_written_in_sql_as_a_mapping_or_as_arrow_has_it(schema: Any) -> None:
    stream = hr.Pipeline().source("single_file", path="in.json", schema=schema)
    assert stream.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])


class Forward(hr.ArrowOperator):
    """Collects what it gets."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)


COUNTS = "shop TEXT, n BIGINT"
KEEPS_UPDATES: dict[str, Callable[[hr.Stream], hr.Stream]] = {
    "map": lambda counts: counts.map(lambda batch: batch, schema=COUNTS),
    "flat_map of batches": lambda counts: counts.flat_map(
        lambda batch: [batch.slice(0, 1), batch.slice(1)], per="batch", schema=COUNTS
    ),
    "apply": lambda counts: counts.apply(
        Forward(), schema={"shop": "TEXT", "n": "BIGINT", "_retract": "BOOLEAN"}
    ),
}


@pytest.mark.parametrize("method", KEEPS_UPDATES)
def test_rows_that_a_function_forwards_of_an_updating_stream_are_taken_back(
    method: str, tmp_path: Path
) -> None:
    counts = hr.Pipeline().source("memory", rows=SALES).group_by("shop").aggregate(n="count(*)")
    forwarded = KEEPS_UPDATES[method](counts)
    assert forwarded.is_updating
    total = forwarded.group_by().aggregate(total="sum(n)")
    assert rows_of(total, tmp_path, epoch_rows=1) == [{"total": 4}]


@pytest.mark.parametrize("schema", [None, COUNTS])
def test_a_map_of_an_updating_stream_must_return_which_rows_are_taken_back(
    schema: str | None, tmp_path: Path
) -> None:
    counts = hr.Pipeline().source("memory", rows=SALES).group_by("shop").aggregate(n="count(*)")
    mapped = counts.map(lambda batch: batch.drop_columns(["_retract"]), schema=schema)
    assert mapped.is_updating
    with pytest.raises(hr.OperatorError, match="`map_1` have no column `_retract`"):
        rows_of(mapped, tmp_path)


def test_a_query_refuses_retractions_that_no_schema_declares(tmp_path: Path) -> None:
    counts = hr.Pipeline().source("memory", rows=SALES).group_by("shop").aggregate(n="count(*)")
    applied = counts.apply(Forward(), schema=COUNTS).filter("n > 0")
    with pytest.raises(hr.OperatorError, match="which the `schema` does not declare"):
        rows_of(applied, tmp_path)


def test_flat_map_of_the_rows_of_an_updating_stream_is_refused() -> None:
    counts = hr.Pipeline().source("memory", rows=SALES).group_by("shop").aggregate(n="count(*)")
    with pytest.raises(hr.PlanError, match="debezium_json"):
        counts.flat_map(lambda row: [row])


WRONG_ROWS: dict[str, tuple[Callable[[hr.Stream], hr.Stream], str]] = {
    "map without a column": (
        lambda sales: sales.map(lambda batch: batch.drop_columns(["shop"]), schema="shop TEXT"),
        "no column `shop`",
    ),
    "map to another type": (
        lambda sales: sales.map(lambda batch: batch, schema="id BIGINT, shop BIGINT"),
        "column `shop` is string, not int64",
    ),
    "flat_map without a column": (
        lambda sales: sales.flat_map(lambda _: [{"sho": "x"}], schema="shop TEXT"),
        "no column `shop`(.|\\n)*did you mean `sho`",
    ),
    "flat_map to another type": (
        lambda sales: sales.flat_map(lambda _: [{"shop": 3}], schema="shop TEXT"),
        "in column `shop` that do not fit the string",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_ROWS)
def test_rows_that_do_not_fit_the_schema_of_a_function_are_refused_without_a_query(
    mistake: str, tmp_path: Path
) -> None:
    build, expected = WRONG_ROWS[mistake]
    with pytest.raises(hr.OperatorError, match=expected):
        rows_of(build(hr.Pipeline().source("memory", rows=SALES)), tmp_path)


def test_a_function_s_rows_have_the_columns_and_types_of_its_schema(tmp_path: Path) -> None:
    sales = hr.Pipeline().source("memory", rows=SALES[:1])
    mapped = sales.map(lambda batch: batch, schema="amount DOUBLE, id BIGINT")
    mapped.flat_map(lambda row: [{**row, "more": 1}], schema="id INT").sink("memory", name="ids")
    mapped.sink("memory", name="mapped")
    rows = run_in_process(sales.pipeline, tmp_path).rows
    assert rows["mapped"].drop_columns(["_timestamp"]).to_pydict() == {"amount": [3.0], "id": [1]}
    assert rows["ids"].schema.field("id").type == pa.int32()
    assert rows["ids"].schema.names == ["id", "_timestamp"]


def test_a_generated_id_leaves_out_those_that_the_user_has_chosen() -> None:
    sales = hr.Pipeline().source("memory", rows=SALES)
    streams = [
        sales.filter("id > 0", id="filter_2"),
        sales.filter("id > 1"),
        sales.filter("id > 2"),
        sales.filter("id > 3", id="filter"),
    ]
    names = [repr(stream).partition(":")[0] for stream in streams]
    assert names == ["Stream(filter_2", "Stream(filter_1", "Stream(filter_3", "Stream(filter"]


def test_functions_of_sql_are_listed_and_shown() -> None:
    assert {"sum", "upper", "count"} <= set(dir(hr.fn))
    assert repr(hr.fn.sum) == "headrace.fn.sum"


@pytest.mark.parametrize(
    ("build", "columns"),
    [
        (lambda sales, _: sales.filter("id > 9"), ["id", "shop", "amount", "_timestamp"]),
        (
            lambda sales, _: sales.filter("id > 9").group_by("shop").aggregate(n="count(*)"),
            ["shop", "n", "_timestamp", "_retract"],
        ),
        (lambda sales, paid: sales.join(paid, on="id = order_id + 100"), None),
        (
            lambda sales, _: sales.map(lambda batch: batch.slice(0, 0), schema="id BIGINT"),
            ["id", "_timestamp"],
        ),
    ],
    ids=["filter", "aggregate", "join", "map"],
)
def test_a_result_without_rows_has_the_columns_of_one_with_rows(
    tmp_path: Path, build: Build, columns: list[str] | None
) -> None:
    sales, paid = inputs()
    stream = build(sales, paid).sink(hr.MemorySink("out"))
    rows = run_in_process(stream.pipeline, tmp_path).rows["out"]
    assert rows.num_rows == 0
    expected = columns or [*sales.schema.names, *paid.schema.names, "_timestamp"]  # type: ignore[union-attr]
    assert rows.schema.names == expected
    assert stream.schema is not None
    assert [rows.schema.field(field.name).type for field in stream.schema] == stream.schema.types


def test_a_source_without_rows_has_the_columns_it_declares(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("")
    pipeline = hr.Pipeline()
    pipeline.source("single_file", path=str(empty), schema="id BIGINT, shop TEXT").sink("memory", name="out")
    rows = run_in_process(pipeline, tmp_path / "state").rows["out"]
    assert rows.schema.names == ["id", "shop", "_timestamp"]


@pytest.mark.parametrize(
    ("build", "columns"),
    [
        (lambda s: s.select("amount * 2", "upper(shop)", "CAST(id AS TEXT)"), None),
        (lambda s: s.select(hr.col("amount") * 2, hr.fn.upper("shop")), ["amount * 2", "upper(shop)"]),
        (
            lambda s: s.group_by("shop").aggregate("sum(amount)", "count(*)", "max(id) - min(id)"),
            ["shop", "sum(amount)", "count(*)", "max(id) - min(id)"],
        ),
        (lambda s: s.group_by("upper(shop)").aggregate(n="count(*)"), ["upper(shop)", "n"]),
        (
            lambda s: s.group_by("shop").tumble("1h").aggregate(hr.fn.sum("amount")),
            ["shop", "window", "sum(amount)"],
        ),
        (lambda s: s.sql("SELECT input.id, sum(amount) FROM input GROUP BY 1"), ["id", "sum(amount)"]),
        (lambda s: s.sql("SELECT * FROM (SELECT id + 1 FROM input)"), ["id + 1"]),
        (lambda s: s.sql("SELECT id + 1 FROM input UNION ALL SELECT amount FROM input"), ["id + 1"]),
        (lambda s: s.sql("SELECT id AS n, shop FROM input"), ["n", "shop"]),
    ],
)
def test_a_column_that_nobody_names_is_called_as_it_is_written(
    tmp_path: Path, build: Callable[[hr.Stream], hr.Stream], columns: list[str] | None
) -> None:
    sales = hr.Pipeline().source("memory", rows=SALES)
    stream = build(sales)
    expected = columns or ["amount * 2", "upper(shop)", "CAST(id AS TEXT)"]
    assert stream.schema is not None
    assert stream.schema.names == expected
    rows = rows_of(stream, tmp_path)
    assert rows
    assert list(rows[0]) == expected


def test_a_column_that_nobody_names_can_be_used_by_its_name() -> None:
    sales = hr.Pipeline().source("memory", rows=SALES)
    doubled = sales.select("amount * 2").filter(hr.col("amount * 2") > 4)
    assert doubled.schema is not None
    assert doubled.schema.names == ["amount * 2"]
