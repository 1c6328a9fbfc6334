"""The iceberg sink: each row once in the table, in few snapshots, whatever happens in between."""

import sys
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyiceberg.table import Transaction

from headrace.base.errors import ConfigurationError, ExternalError, MissingExtraError, PlanError
from headrace.connectors.iceberg.partitions import parse_field
from headrace.connectors.iceberg.sink import COMMIT, IcebergSink, load_catalog
from headrace.testing.in_process import CrashError, ManualClock
from tests.support import SinkDriver
from tests.unit.connectors.rolling import ROWS, STEPS, CrashAfter, pipeline, run, run_into_crash


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "catalog.type": "sql",
        "catalog.url": f"sqlite:///{folder}/catalog.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
        "namespace": "lake",
        "table_name": "rows",
        **more,
    }


def catalog(folder: Path) -> Any:
    return load_catalog(IcebergSink(**options(folder)).options)


def table(folder: Path) -> Any:
    return catalog(folder).load_table("lake.rows")


def numbers(folder: Path) -> list[int]:
    if not catalog(folder).table_exists("lake.rows"):
        return []
    return sorted(table(folder).scan().to_arrow().column("n").to_pylist())


def driver(folder: Path, **more: Any) -> SinkDriver:
    given = options(folder, **{"rolling_policy.interval": 0, **more})
    return SinkDriver(lambda: IcebergSink(**given), folder / "state", job=f"{folder.name}{sorted(more)}")


def batch(*values: int, **columns: Any) -> pa.RecordBatch:
    times = pa.array(values, pa.int64()).cast(pa.timestamp("ns"))
    return pa.record_batch({"n": pa.array(values, pa.int64()), **columns, "_timestamp": times})


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", [3, 4])
def test_a_crash_at_any_step_costs_no_row_and_doubles_none(tmp_path: Path, step: str, at: int) -> None:
    clock, state = ManualClock(), tmp_path / "state"
    given = options(tmp_path, **{"rolling_policy.interval": "4s", "partitioning.fields": "k"})
    if run_into_crash(pipeline("iceberg", **given), state, clock, step, at):
        assert len(numbers(tmp_path)) in {0, 40}
    else:
        assert step.startswith("sink_committed")  # an epoch that ends no file has nothing to commit
    run(pipeline("iceberg", **given), state, clock, parallelism=3, epoch_rows=30)
    assert numbers(tmp_path) == list(range(ROWS))
    assert len(table(tmp_path).snapshots()) <= 4  # few snapshots, of few files


@pytest.mark.parametrize("calls", [1, 1.5, 2, 2.5, 3, 3.5])
def test_a_crash_inside_a_commit_is_made_good_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: float
) -> None:
    """At the change of the table, and at what is forgotten after it."""
    clock, crash, state = ManualClock(), CrashAfter(calls), tmp_path / "state"
    given = options(tmp_path, **{"rolling_policy.interval": "4s"})
    catalog(tmp_path).create_namespace("lake")
    catalog(tmp_path).create_table("lake.rows", pa.schema({"n": pa.int64(), "k": pa.string()}))
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", crash.wrap(Transaction.commit_transaction))
        patch.setattr(IcebergSink, "forget", crash.wrap(IcebergSink.forget))
        with pytest.raises(CrashError):
            run(pipeline("iceberg", **given), state, clock)
    run(pipeline("iceberg", **given), state, clock, epoch_rows=20)
    assert numbers(tmp_path) == list(range(ROWS))
    commits = [snapshot.summary[COMMIT] for snapshot in table(tmp_path).snapshots()]
    assert len(set(commits)) == len(commits)


def test_an_epoch_that_was_run_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Whoever goes back to an earlier checkpoint may see rows again, and loses none."""
    clock, state = ManualClock(), tmp_path / "state"
    given = options(tmp_path, **{"rolling_policy.interval": "2s"})
    run(pipeline("iceberg", **given), state, clock, max_epochs=8)
    run(pipeline("iceberg", **given), state, clock, from_epoch=4, epoch_rows=25)
    found = Counter(numbers(tmp_path))
    assert set(found) == set(range(ROWS))
    assert max(found.values()) == 2


def test_columns_get_the_types_that_a_table_has(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - without a zone, as the table has it
    rows = {
        "at": pa.array([at], pa.timestamp("ns")),
        "small": pa.array([7], pa.uint16()),
        "money": pa.array([Decimal("1.20")]),
        "raw": pa.array([b"\xff"]),
        "inner": pa.array([[{"a": 1}]]),
        "code": pa.array(["x"]).dictionary_encode(),
    }
    driver(tmp_path).run(1, [batch(1, **rows)])
    (row,) = table(tmp_path).scan().to_arrow().to_pylist()
    assert row == {
        "n": 1,
        "at": at,
        "small": 7,
        "money": Decimal("1.20"),
        "raw": b"\xff",
        "inner": [{"a": 1}],
        "code": "x",
    }


def test_rows_lie_in_partitions_and_filters_find_them(tmp_path: Path) -> None:
    fields = "k, day(at), bucket(n, 4), truncate(k, 1), day, money"
    sink = driver(tmp_path, **{"partitioning.fields": fields})
    count = 12
    columns = {
        "k": [("", "bee", None)[i % 3] for i in range(count)],
        "at": pa.array([i * 20 * 3600 * 10**9 for i in range(count)], pa.timestamp("ns")),
        "day": pa.array([date(2026, 1, 1 + i % 2) for i in range(count)]),
        "money": pa.array([Decimal(i % 2) / 4 for i in range(count)], pa.decimal128(5, 2)),
    }
    sink.run(1, [batch(*range(count), **columns)])

    def found(row_filter: str) -> tuple[list[int], int]:
        scan = table(tmp_path).scan(row_filter=row_filter)
        return sorted(scan.to_arrow().column("n").to_pylist()), len(list(scan.plan_files()))

    assert found("k = 'bee'") == ([1, 4, 7, 10], 4)
    assert found("k = ''") == ([0, 3, 6, 9], 4)
    assert found("k is null") == ([2, 5, 8, 11], 4)
    assert found("n = 4") == ([4], 1)
    assert found("day = '2026-01-02'") == ([1, 3, 5, 7, 9, 11], 6)
    assert found("at < '1970-01-02T00:00:00'") == ([0, 1], 2)
    assert found("money = 0.25") == ([1, 3, 5, 7, 9, 11], 6)
    assert found("n >= 0") == (list(range(count)), count)


def test_a_table_that_is_there_keeps_its_columns_and_partitions(tmp_path: Path) -> None:
    catalog(tmp_path).create_namespace("lake")
    made = catalog(tmp_path).create_table("lake.rows", pa.schema({"n": pa.int32(), "more": pa.string()}))
    with made.update_spec() as spec:
        spec.add_identity("more")
    sink = driver(tmp_path, schema={"n": "int64"})
    sink.make().validate()
    sink.run(1, [batch(1, other=["left out"])])
    assert table(tmp_path).scan().to_arrow().to_pylist() == [{"n": 1, "more": None}]
    with pytest.raises(ConfigurationError, match="column `n`"):
        sink.run(2, [batch(2**40)])
    with pytest.raises(ConfigurationError, match=r"no column `othr`"):
        driver(tmp_path).run(2, [batch(1, othr=["x"])])
    for given, message in (
        ({"schema": {"x": "int64"}}, "no column `x`"),
        ({"schema": {"n": "list<int64>"}}, "`n`"),
        ({"partitioning.fields": "bucket(n, 4)"}, r"partitioned by \(more\), the sink by \(bucket\(n, 4\)\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            IcebergSink(**options(tmp_path, **given)).validate()


def test_partitions_that_no_table_can_have_are_told(tmp_path: Path) -> None:
    at = pa.array([0], pa.timestamp("ns"))
    with pytest.raises(ConfigurationError, match="conflicts"):
        driver(tmp_path, **{"partitioning.fields": "day(at), hour(at)"}).run(1, [batch(1, at=at)])


def test_a_table_that_changes_its_partitions_meanwhile_is_told(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    sink.run(1, [batch(1)])
    data = sink.prepare(2, [batch(2)])
    with table(tmp_path).update_spec() as spec:
        spec.add_identity("n")
    with pytest.raises(ConfigurationError, match="partitioned otherwise"):
        sink.commit(2, data)


def test_rows_that_change_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="only add rows"):
        driver(tmp_path).run(1, [batch(1, _retract=[True])])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"catalog.type": "rest", "catalog.url": None}, "`catalog.rest.url`"),
        ({"table_name": ""}, "`table_name`"),
        ({"partitioning.fields": "weekday(at)"}, "no transform"),
        ({"partitioning.fields": "bucket(n)"}, "bucket(n, 16)"),
        ({"partitioning.fields": "day(m)", "schema": {"n": "int64"}}, "no column `m`"),
        ({"format": "json"}, "`format`"),
        ({"schema": {"n": "int64"}, "with_timestamp": True}, "with_timestamp"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        IcebergSink(**options(tmp_path, **more))
    assert message in str(caught.value)


def test_partitions_are_written_in_one_way() -> None:
    assert parse_field("k") == ("k", "identity")
    assert parse_field(" Day( at ) ") == ("at", "day")
    assert parse_field("bucket(id,16)") == ("id", "bucket[16]")
    assert parse_field('TRUNCATE("k", 8)') == ("k", "truncate[8]")
    with pytest.raises(ConfigurationError, match="is no partition"):
        parse_field("day(at, 3)")


def test_it_tells_what_table_is_there_and_hides_secrets(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    assert "not there yet" in sink.make().reach()  # type: ignore[attr-defined]
    sink.run(1, [batch(1)])
    assert "1 columns and 1 snapshots" in sink.make().reach()  # type: ignore[attr-defined]
    given = {
        "catalog.rest.url": "http://127.0.0.1:1",
        "catalog.rest.token": "hush",
        "catalog.settings": "credential=hush:hush",
        "storage.aws_secret_access_key": "hush",
        "table_name": "rows",
    }
    copy = cloudpickle.loads(cloudpickle.dumps(IcebergSink(**given)))
    assert "hush" not in copy.display()
    assert copy.options.catalog_settings == {"credential": "hush:hush"}
    with pytest.raises(ExternalError, match="cannot be opened") as caught:
        copy.validate()
    assert "hush" not in str(caught.value)


def test_a_missing_package_is_told_with_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(MissingExtraError, match="pyiceberg") as caught:
        IcebergSink(**options(tmp_path)).validate()
    assert "headrace[iceberg]" in str(caught.value)
