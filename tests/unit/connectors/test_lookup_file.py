from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError
from headrace.connectors.single_file.lookup import SingleFileLookup
from headrace.model.operator import OperatorContext
from headrace.model.registry import registry
from headrace.testing.in_process import run_in_process
from tests.support import task

JOBS = itertools.count()
COLUMNS = {"id": "string", "name": "string"}


def lookup(path: Path, **options: Any) -> SingleFileLookup:
    values = {"path": str(path), "schema": COLUMNS, "primary_key": "id", **options}
    made: SingleFileLookup = pickle.loads(pickle.dumps(SingleFileLookup(**values)))
    return made


def context() -> OperatorContext:
    return OperatorContext(task(job=f"file-{next(JOBS)}"), None)  # type: ignore[arg-type]


def names(table: SingleFileLookup, keys: Any, ctx: OperatorContext | None = None) -> dict[Any, Any]:
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    found = table.lookup(keys, ctx or context())
    assert found.schema.names == list(table.columns.names)
    return {row["id"]: row["name"] for row in found.to_pylist()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "names.json"
    path.write_text(
        '{"id": "a", "name": "Ada"}\n\n{"id": "b", "name": null, "more": 1}\n{"id": "a", "name": "Alan"}'
    )
    return path


def test_rows_are_found_by_their_key_and_the_last_line_counts(file: Path) -> None:
    assert names(lookup(file), ["b", "x", "a"]) == {"a": "Alan", "b": None}
    assert names(lookup(file), []) == {}


def test_the_file_is_read_again_only_when_it_has_changed(file: Path) -> None:
    table, ctx = lookup(file), context()
    assert names(table, ["a"], ctx) == {"a": "Alan"}
    about = file.stat()
    same_size = file.read_bytes().replace(b"Alan", b"Anna")
    file.write_bytes(same_size)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert names(table, ["a"], ctx) == {"a": "Alan"}
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert names(table, ["a"], ctx) == {"a": "Anna"}
    other = file.with_suffix(".new")
    other.write_text('{"id": "c", "name": "Cy"}\n')
    other.replace(file)
    assert names(table, ["a", "c"], ctx) == {"c": "Cy"}


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert names(lookup(tmp_path / "empty"), ["a"]) == {}


def test_keys_of_other_types_are_compared_by_value(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text('{"id": "2024-05-01T08:00:00.000000001", "name": "then"}\n')
    table = lookup(path, schema={"id": "timestamp", "name": "string"})
    times = pa.array([1714550400000000001, 1714550400000000000], pa.int64()).cast(pa.timestamp("ns"))
    assert table.lookup(times, context()).column("name").to_pylist() == ["then"]


def test_a_line_that_does_not_fit_ends_the_run_with_its_number(file: Path) -> None:
    file.write_text('{"id": "a", "name": "Ada"}\n{"id": "b", "name": [1]}\n')
    with pytest.raises(BadLineError, match="line 2 cannot be read"):
        names(lookup(file), ["a"])


def test_a_line_that_does_not_fit_can_be_dropped_and_is_counted_once(file: Path) -> None:
    file.write_text('{"id": "a", "name": "Ada"}\n{"id": "b", "name": [1]}\n')
    table, ctx = lookup(file, bad_data="drop"), context()
    for _ in range(2):
        assert names(table, ["a", "b"], ctx) == {"a": "Ada"}
    assert ctx.metrics.values == {"bad_rows": 1}
    assert "line 2" in ctx.errors[0]


def test_a_file_that_is_gone_is_an_outside_failure(file: Path) -> None:
    table, ctx = lookup(file), context()
    table.validate()
    names(table, ["a"], ctx)
    file.unlink()
    with pytest.raises(ExternalError, match="cannot be read"):
        names(table, ["a"], ctx)
    with pytest.raises(ConfigurationError, match="there is no file"):
        table.validate()
    with pytest.raises(ConfigurationError, match="is not a file"):
        lookup(file.parent).validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primary_key": []}, "primary key of one column, got none"),
        ({"primary_key": "id, name"}, "got id, name"),
        ({"primary_key": "idd"}, "there is no column `idd`"),
        ({"schema": None}, "needs columns"),
        ({"framing": "newline"}, "unknown option `framing`"),
        ({"format": "debezium_json"}, "option `format`"),
        ({"pth": "x"}, "did you mean `path`"),
    ],
)
def test_options_that_make_no_lookup_are_refused(file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        lookup(file, **options)
    assert message in f"{caught.value}"


def test_it_is_built_by_its_name(file: Path) -> None:
    built = registry.build_lookup(
        "single_file", {"path": str(file), "schema": COLUMNS, "primary_key": ["id"]}
    )
    assert (built.key, built.columns.names, built.cache_bytes) == ("id", ["id", "name"], 0)


LATE = """
CREATE TABLE orders (n BIGINT, at TIMESTAMP, customer TEXT, WATERMARK FOR at AS at)
WITH (connector = 'single_file', path = '{orders}', format = 'json', type = 'source', late_table = 'late');

CREATE TEMPORARY TABLE names (id TEXT PRIMARY KEY, name TEXT)
WITH (connector = 'single_file', path = '{names}');

SELECT tumble(interval '1 minute') AS window, name, count(*) AS orders
FROM orders JOIN names ON customer = id GROUP BY window, name;

SELECT n, customer FROM late;
"""


def test_rows_that_are_late_after_a_lookup_are_given_back_as_they_were_read(
    file: Path, tmp_path: Path
) -> None:
    orders = tmp_path / "orders.json"
    times = ["08:00:01", "08:05:00", "08:06:00", "08:00:02", "08:07:00"]
    orders.write_text(
        "".join(f'{{"n": {n}, "at": "2024-05-01T{at}", "customer": "a"}}\n' for n, at in enumerate(times))
    )
    sinks = itertools.count()
    pipeline = hr.Pipeline.from_sql(
        LATE.format(orders=orders, names=file), preview=lambda _: ("memory", {"name": f"out{next(sinks)}"})
    )
    result = run_in_process(pipeline, tmp_path / "state", epoch_rows=1)
    assert [row["name"] for row in result.rows["out0"].to_pylist()] == ["Alan"] * 4
    assert [(row["n"], row["customer"]) for row in result.rows["out1"].to_pylist()] == [(3, "a")]
