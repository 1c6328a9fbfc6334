"""NOT NULL: a sink gets no null in such a column, and a source takes none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import BadLineError, HeadraceError
from headrace.base.options import parse_options
from headrace.connectors._shared.messages import MessageOptions, MessageReader, Messages
from headrace.model.operator import SourceContext, Split
from headrace.testing.in_process import run_in_process
from tests.support import ListCollector, task

SINKS = {
    "json": "connector = 'single_file', path = '{0}/out', type = 'sink'",
    "csv": "connector = 'single_file', path = '{0}/out', type = 'sink', format = 'csv'",
    "avro": "connector = 'filesystem', path = '{0}/out', type = 'sink', format = 'avro'",
    "parquet": "connector = 'filesystem', path = '{0}/out', type = 'sink', format = 'parquet'",
    "delta": "connector = 'delta', path = '{0}/out', type = 'sink'",
    "blackhole": "connector = 'blackhole'",
    "stdout": "connector = 'stdout'",
}
SOURCE = """
    CREATE TABLE numbers (n BIGINT, name TEXT)
    WITH (connector = 'single_file', path = '{0}/in.json', type = 'source');
"""


def run(sql: str, folder: Path) -> Any:
    return run_in_process(Pipeline.from_sql(sql, name="not_null"), folder / "state")


@pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)
def test_a_null_for_a_column_that_is_not_null_is_told_with_the_row_whatever_the_sink(
    sink: str, tmp_path: Path
) -> None:
    (tmp_path / "in.json").write_text('{"n": 1, "name": "a"}\n{"n": 2}\n')
    sql = f"""{SOURCE}
        CREATE TABLE names (n BIGINT, label TEXT NOT NULL) WITH ({sink});
        INSERT INTO names SELECT n, name FROM numbers;
    """.format(tmp_path)
    with pytest.raises(HeadraceError) as raised:
        run(sql, tmp_path)
    assert (
        'column `label` of `names` is NOT NULL, and a row has no value for it: {"n":2,"label":null}'
        in raised.value.message
    )
    assert "WHERE label IS NOT NULL" in str(raised.value.hint)


def test_rows_that_have_all_values_pass_and_columns_that_are_left_out_are_told(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"n": 1, "name": "a"}\n{"n": 2}\n')
    sink = f"""{SOURCE}
        CREATE TABLE names (n BIGINT PRIMARY KEY, label TEXT NOT NULL) WITH ({SINKS["csv"]});
    """.format(tmp_path)
    run(f"{sink} INSERT INTO names SELECT n, coalesce(name, '-') FROM numbers", tmp_path)
    assert (tmp_path / "out").read_text() == "n,label\n1,a\n2,-\n"
    with pytest.raises(HeadraceError, match="column `label` of `names` is NOT NULL"):
        run_in_process(
            Pipeline.from_sql(f"{sink} INSERT INTO names (n) SELECT n FROM numbers", name="not_null"),
            tmp_path / "state_two",
        )


def test_a_primary_key_alone_may_be_null_as_that_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"n": 1, "name": "a"}\n{"n": 2}\n')
    sql = f"""{SOURCE}
        CREATE TABLE names (label TEXT PRIMARY KEY, n BIGINT) WITH ({SINKS["csv"]});
        INSERT INTO names SELECT name, n FROM numbers;
    """.format(tmp_path)
    run(sql, tmp_path)
    assert (tmp_path / "out").read_text() == "label,n\na,1\n,2\n"


class KeyedOptions(MessageOptions):
    METADATA: ClassVar = {"key": pa.int64()}


@pytest.mark.parametrize("bad_data", ["fail", "drop", "dead_letter"])
def test_a_message_without_metadata_that_must_be_there_is_bad(bad_data: str) -> None:
    columns = pa.schema([pa.field("n", pa.int64()), pa.field("k", pa.int64(), nullable=False)])
    given = {"schema": columns, "metadata": {"k": "key"}, "bad_data": bad_data}
    reader = MessageReader(parse_options(KeyedOptions, given, what="it"), connector="test", where="topic t")
    ctx, collector = SourceContext(task(), Split("0", {})), ListCollector()
    messages = Messages(
        [b'{"n":1}', b'{"n":2}', b'{"n":3}'],
        np.arange(3) * 10**9,
        lambda _: [7, None, 9],
        lambda place: f"offset {place}",
    )
    told = "the message at offset 1 cannot be read, column `k`: it has no `key`, and the column is NOT NULL"
    if bad_data == "fail":
        with pytest.raises(BadLineError, match=told):
            reader.read(messages, ctx, collector)
        return
    rows = reader.read(messages, ctx, collector)
    assert [(row["n"], row["k"]) for row in rows.to_pylist()] == [(1, 7), (3, 9)]
    counted = {"bad_rows": 1, "bad_rows.missing-value": 1}
    assert ctx.metrics.values == counted | ({"dead_letters": 1} if bad_data == "dead_letter" else {})
    letters = [(row["content"], row["error"], row["position"]) for row in collector.rows]
    assert letters == ([('{"n":2}', told, "offset 1")] if bad_data == "dead_letter" else [])
