"""What changes of rows amount to, and the options of tables in databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigurationError, PlanError
from headrace.connectors._shared.sql_table import net_changes, table_parts, without_pairs
from headrace.connectors.postgres.sink import PostgresSink, column_type
from headrace.formats.base import JSON_COLUMN
from tests.support import SinkDriver

URL = "postgresql://ada:open-sesame@host:5432/sales?password=sesame"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_retract", pa.bool_())])


def table(rows: list[tuple[int, str | None, bool]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "c", None])), max_size=25),
    st.integers(0, 25),
    st.randoms(use_true_random=False),
)
def test_any_valid_changes_in_any_order_lead_from_the_old_table_to_the_new(
    steps: list[tuple[int, str | None]], before: int, random: Any
) -> None:
    state: dict[int, str | None] = {}
    old: dict[int, str | None] = {}
    rows: list[tuple[int, str | None, bool]] = []
    for place, (key, name) in enumerate(steps):
        if place == before:
            old, rows = dict(state), []
        if key in state:
            rows.append((key, state.pop(key), True))
        if name != "c":  # a `c` deletes
            state[key] = name
            rows.append((key, name, False))
    if before >= len(steps):
        old, rows = dict(state), []
    random.shuffle(rows)
    cut = random.randint(0, len(rows))
    parts = pa.concat_tables([without_pairs(table(rows[:cut])), without_pairs(table(rows[cut:]))])
    made = net_changes(parts, ["id"])
    for row in made.deleted.to_pylist():
        del old[row["id"]]
    old |= {row["id"]: row["name"] for row in made.rows.to_pylist()}
    assert old == state
    assert made.rows.num_rows == len(set(made.rows.column("id").to_pylist()))


def test_of_rows_that_only_add_the_last_of_each_key_counts_and_without_a_key_all() -> None:
    rows = pa.table({"id": [1, 2, 1, 1], "name": ["a", "b", "c", "c"]})
    assert net_changes(rows, ["id"]).rows.to_pylist() == [{"id": 2, "name": "b"}, {"id": 1, "name": "c"}]
    assert net_changes(rows, []).rows == rows
    assert net_changes(rows, ["id"]).deleted.num_rows == 0


def test_names_of_tables_may_have_parts_and_quotes() -> None:
    assert table_parts("a") == ("a",)
    assert table_parts('a."b.""c"') == ("a", 'b."c')
    assert table_parts("a.b.c") == ("a", "b", "c")
    for name in ("", ".", "a.", ".a", "a..b", '"a', 'a"b"', "a.b.c.d"):
        with pytest.raises(ValueError, match="is not the name of a table"):
            table_parts(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "mysql://ada:open-sesame@h/d"}, "`url` is not an address such as postgresql:"),
        ({"url": 7}, "`url` is not an address such as postgresql:"),
        ({"table": "a.b.c"}, "has too many parts"),
        ({"table": "a."}, "is not the name of a table"),
        ({"sink.epochs_table": ""}, "is not the name of a table"),
        (
            {"schema": {"name": "string"}, "primary_key": "nam"},
            "`primary_key` names `nam`.*did you mean `name`",
        ),
        ({"sink.create": "yes"}, "unknown option `sink.create`: did you mean `sink.create_table`"),
    ],
)
def test_options_that_cannot_be_are_refused_without_showing_secrets(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        PostgresSink(**{"url": URL, "table": "orders", "password": "sesame", **options})
    assert "sesame" not in str(caught.value)


def test_nothing_that_is_shown_holds_a_secret() -> None:
    sink = PostgresSink(url=URL, table="orders", password="sesame")
    sink.validate()
    assert sink.display() == "PostgresSink(orders at host:5432/sales)"
    assert "sesame" not in f"{sink.options!r}{sink.options.model_dump_json()}"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"id": 1, "_retract": False}], {}, "has no key"),
        ([{"id": None, "name": "a"}], {"primary_key": "id"}, "has no `id`, part of the primary key"),
        ([{"name": "a"}], {"primary_key": "id"}, "the rows have no column `id`"),
        (
            [{"id": 1, "nme": "a"}],
            {"schema": {"id": "int64", "name": "string"}},
            "the rows have no column `name`",
        ),
        ([{"id": "x"}], {"schema": {"id": "int64"}}, "the rows do not fit the columns of `orders`"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_refused_before_they_are_staged(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    driver = SinkDriver(lambda: PostgresSink(url=URL, table="orders", **options), tmp_path)
    with pytest.raises(PlanError, match=message):
        driver.prepare(1, [pa.RecordBatch.from_pylist(rows)])


def test_rows_that_come_to_nothing_are_not_staged(tmp_path: Path) -> None:
    driver = SinkDriver(lambda: PostgresSink(url=URL, table="orders", primary_key="id"), tmp_path)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "_retract": False}, {"id": 1, "_retract": True}])
    assert driver.prepare(1, [rows]) == {}
    assert driver.metrics == {"rows": 2}


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (pa.field("c", pa.int8()), "smallint"),
        (pa.field("c", pa.uint16()), "integer"),
        (pa.field("c", pa.uint32()), "bigint"),
        (pa.field("c", pa.float32()), "real"),
        (pa.field("c", pa.decimal128(9, 2)), "numeric(9, 2)"),
        (pa.field("c", pa.timestamp("ns", "UTC")), "timestamptz"),
        (pa.field("c", pa.string(), metadata=JSON_COLUMN), "jsonb"),
        (pa.field("c", pa.list_(pa.list_(pa.binary()))), "bytea[][]"),
        (pa.field("c", pa.struct([("x", pa.int64())])), "jsonb"),
        (pa.field("c", pa.duration("s")), "interval"),
        (pa.field("c", pa.large_string()), "text"),
    ],
)
def test_created_columns_have_types_that_hold_the_values(field: pa.Field, kind: str) -> None:
    assert column_type(field) == kind
