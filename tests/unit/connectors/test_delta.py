"""The delta sink: each row once in the table, in few versions, whatever happens in between."""

import sys
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.base.errors import (
    ConfigurationError,
    ExternalError,
    MissingExtraError,
    PlanError,
    RefusedError,
)
from headrace.connectors.delta import sink as delta
from headrace.connectors.delta.sink import DeltaSink
from headrace.testing.in_process import CrashError, ManualClock
from tests.support import SinkDriver
from tests.unit.connectors.rolling import ROWS, STEPS, CrashAfter, pipeline, run, run_into_crash

EACH_EPOCH = {"rolling_policy.interval": 0}


def table(folder: Path) -> DeltaTable:
    return DeltaTable(str(folder / "table"))


def numbers(folder: Path) -> list[int]:
    if not DeltaTable.is_deltatable(str(folder / "table")):
        return []
    found: list[int] = table(folder).to_pyarrow_table().column("n").to_pylist()
    return sorted(found)


def driver(folder: Path, **options: Any) -> SinkDriver:
    given = {"path": str(folder / "table"), **EACH_EPOCH, **options}
    return SinkDriver(lambda: DeltaSink(**given), folder / "state", job=folder.name)


def batch(*values: int, **columns: Any) -> pa.RecordBatch:
    times = pa.array(values, pa.int64()).cast(pa.timestamp("ns"))
    return pa.record_batch({"n": pa.array(values, pa.int64()), **columns, "_timestamp": times})


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", [3, 4])
def test_a_crash_at_any_step_costs_no_row_and_doubles_none(tmp_path: Path, step: str, at: int) -> None:
    clock, state = ManualClock(), tmp_path / "state"
    options: dict[str, Any] = {
        "path": str(tmp_path / "table"),
        "rolling_policy.interval": "4s",
        "partitioning.fields": "k",
    }
    if run_into_crash(pipeline("delta", **options), state, clock, step, at):
        assert len(numbers(tmp_path)) in {0, 40}
    else:
        assert step.startswith("sink_committed")  # an epoch that ends no file has nothing to commit
    run(pipeline("delta", **options), state, clock, parallelism=3, epoch_rows=30)
    assert numbers(tmp_path) == list(range(ROWS))
    assert table(tmp_path).version() <= 4  # few versions, of few files


@pytest.mark.parametrize("calls", [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5])
def test_a_crash_inside_a_commit_is_made_good_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: float
) -> None:
    """At the making of the table, at a version, and at what is forgotten after it."""
    clock, crash, state = ManualClock(), CrashAfter(calls), tmp_path / "state"
    options: dict[str, Any] = {"path": str(tmp_path / "table"), "rolling_policy.interval": "4s"}
    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, "_create", crash.wrap(DeltaSink._create))
        patch.setattr(DeltaTable, "create_write_transaction", crash.wrap(DeltaTable.create_write_transaction))
        patch.setattr(DeltaSink, "forget", crash.wrap(DeltaSink.forget))
        with pytest.raises(CrashError):
            run(pipeline("delta", **options), state, clock)
    run(pipeline("delta", **options), state, clock, epoch_rows=20)
    assert numbers(tmp_path) == list(range(ROWS))


def test_an_epoch_that_was_run_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Whoever goes back to an earlier checkpoint may see rows again, and loses none."""
    clock, state = ManualClock(), tmp_path / "state"
    options: dict[str, Any] = {"path": str(tmp_path / "table"), "rolling_policy.interval": "2s"}
    run(pipeline("delta", **options), state, clock, max_epochs=8)
    run(pipeline("delta", **options), state, clock, from_epoch=4, epoch_rows=25)
    found = Counter(numbers(tmp_path))
    assert set(found) == set(range(ROWS))
    assert max(found.values()) == 2


def test_a_version_names_the_epoch_and_the_files_tell_their_bounds(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    sink.run(3, [batch(5, 6), batch(7)], [batch(1)])
    (app,) = {f"headrace/{tmp_path.name}/op"}
    assert table(tmp_path).transaction_version(app) == 3
    actions = pa.table(table(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["num_records"], one["min.n"], one["max.n"]) for one in actions) == [
        (1, 1, 1),
        (3, 5, 7),
    ]


def test_columns_get_the_types_that_a_table_has(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    rows = {
        "at": pa.array([at.replace(tzinfo=None)], pa.timestamp("ns")),
        "small": pa.array([7], pa.uint16()),
        "big": pa.array([2**64 - 1], pa.uint64()),
        "money": pa.array([Decimal("1.20")]),
        "raw": pa.array([b"\xff"]),
        "inner": pa.array([[{"a": 1, "at": at}]]),
        "code": pa.array(["x"]).dictionary_encode(),
    }
    driver(tmp_path).run(1, [batch(1, **rows)])
    (row,) = table(tmp_path).to_pyarrow_table().to_pylist()
    assert row == {
        "n": 1,
        "at": at,
        "small": 7,
        "big": Decimal(2**64 - 1),
        "money": Decimal("1.20"),
        "raw": b"\xff",
        "inner": [{"a": 1, "at": at}],
        "code": "x",
    }
    assert table(tmp_path).protocol().min_reader_version == 1  # every reader can read it


def test_rows_lie_in_partitions(tmp_path: Path) -> None:
    sink = driver(tmp_path, **{"partitioning.fields": "day, k, at"})
    at = pa.array([10**9] * 3, pa.timestamp("ns"))
    days = pa.array([date(2026, 1, 1), date(2026, 1, 2), None])
    sink.run(1, [batch(1, 2, 3, day=days, k=["a/b %", None, "c"], at=at)])
    rows = table(tmp_path).to_pyarrow_table().sort_by("n").to_pylist()
    assert [(row["n"], row["day"], row["k"]) for row in rows] == [
        (1, date(2026, 1, 1), "a/b %"),
        (2, date(2026, 1, 2), None),
        (3, None, "c"),
    ]
    assert {row["at"] for row in rows} == {datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}
    filtered = table(tmp_path).to_pyarrow_table(filters=[("k", "=", "a/b %")])
    assert filtered.num_rows == 1


def test_files_lie_in_a_directory_for_each_period_of_event_time_that_no_reader_sees(tmp_path: Path) -> None:
    pattern = "month=%Y-%m/%d"  # which looks like a partition, and is none
    sink = driver(tmp_path, **{"partitioning.time_pattern": pattern, "partitioning.fields": "k"})
    days = [
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 23, tzinfo=UTC),
        datetime(2026, 2, 3, tzinfo=UTC),
    ]
    times = pa.array(days, pa.timestamp("ns", "UTC")).cast(pa.timestamp("ns"))
    columns = {"n": pa.array([1, 2, 3], pa.int64()), "k": ["a", "b", "a"], "_timestamp": times}
    sink.run(1, [pa.record_batch(columns)])
    assert table(tmp_path).version() == 1  # created, and written once
    rows = table(tmp_path).to_pyarrow_table().sort_by("n").to_pylist()
    assert rows == [{"n": 1, "k": "a"}, {"n": 2, "k": "b"}, {"n": 3, "k": "a"}]
    files = sorted(
        Path(file).relative_to(tmp_path / "table").parent.as_posix() for file in table(tmp_path).file_uris()
    )
    assert files == ["month=2026-01/01/k=a", "month=2026-01/01/k=b", "month=2026-02/03/k=a"]
    assert table(tmp_path).metadata().partition_columns == ["k"]
    assert table(tmp_path).to_pyarrow_table(filters=[("k", "=", "a")]).num_rows == 2


def test_a_table_that_is_there_keeps_its_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, pa.table({"n": pa.array([0], pa.int32()), "more": ["x"]}))
    sink = driver(tmp_path, schema={"n": "int64"})
    sink.make().validate()
    sink.run(1, [batch(1, other=["left out"])])
    assert table(tmp_path).to_pyarrow_table().sort_by("n").to_pylist() == [
        {"n": 0, "more": "x"},
        {"n": 1, "more": None},
    ]
    with pytest.raises(ConfigurationError, match="column `n`"):
        sink.run(2, [batch(2**40)])
    with pytest.raises(ConfigurationError, match=r"no column `othr`") as caught:
        driver(tmp_path).run(2, [batch(1, othr=["x"])])
    assert "its columns are n, more" in str(caught.value)
    for columns, message in (({"n": "string", "x": "int64"}, "no column `x`"), ({"n": "list<int64>"}, "`n`")):
        with pytest.raises(ConfigurationError, match=message):
            DeltaSink(path=path, schema=columns).validate()


def test_a_table_that_needs_more_of_a_writer_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, pa.table({"n": [0], "k": ["x"]}), partition_by=["k"])
    with pytest.raises(ConfigurationError, match=r"partitioned by \(k\), the sink by \(\)"):
        DeltaSink(path=path).validate()
    DeltaTable(path).alter.add_constraint({"positive": "n >= 0"})
    with pytest.raises(ConfigurationError, match=r"delta\.constraints\.positive"):
        DeltaSink(path=path, **{"partitioning.fields": "k"}).validate()


def test_rows_that_change_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="only add rows"):
        driver(tmp_path).run(1, [batch(1, _retract=[True])])
    assert not DeltaSink(path="x").accepts_updates


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "json"}, "`format`"),
        ({"partitioning.fields": "m", "schema": {"n": "int64"}}, "no column `m`"),
        ({"schema": {"n": "int64"}, "with_timestamp": True}, "with_timestamp"),
        ({"storage.aws_region": "x"}, "is for object stores"),
        ({"rolling_policy.interval": "-1"}, "rolling_policy.interval"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DeltaSink(**{"path": "table", **options})
    assert message in str(caught.value)


def test_what_has_no_type_in_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="column `i`"):
        DeltaSink(path=str(tmp_path / "t"), schema={"i": "interval"}).validate()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is a file"):
        DeltaSink(path=str(tmp_path / "file")).validate()
    sink = driver(tmp_path, **{"partitioning.fields": "n"})
    with pytest.raises(ConfigurationError, match="nothing is left"):
        sink.run(1, [batch(1)])


def test_it_tells_what_table_is_there_and_hides_secrets(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    assert "no table yet" in sink.make().reach()  # type: ignore[attr-defined]
    sink.run(1, [batch(1)])
    assert "version 1 with 1 columns" in sink.make().reach()  # type: ignore[attr-defined]
    options: dict[str, Any] = {
        "path": "s3://bucket/table",
        "storage.aws_access_key_id": "key",
        "storage.aws_secret_access_key": "hush",
    }
    assert "hush" not in cloudpickle.loads(cloudpickle.dumps(DeltaSink(**options))).display()


def test_a_store_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options: dict[str, Any] = {
        "path": "s3://bucket/table",
        "storage.aws_endpoint": "http://127.0.0.1:1",
        "storage.aws_access_key_id": "key",
        "storage.aws_secret_access_key": "hush",
        "storage.aws_region": "us-east-1",
        "storage.allow_http": "true",
        "storage.max_retries": "0",
    }
    with pytest.raises(ExternalError, match="cannot be opened") as caught:
        delta.open_table(
            options["path"], {k.removeprefix("storage."): v for k, v in options.items() if k != "path"}
        )
    assert "hush" not in str(caught.value)


def test_a_missing_package_is_told_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match="deltalake") as caught:
        DeltaSink(path="table").validate()
    assert "headrace[delta]" in str(caught.value)
    assert deltalake is not None


def test_a_partition_value_longer_than_a_name_may_be_fails_before_the_row_is_in_the_state(
    tmp_path: Path,
) -> None:
    sink = driver(tmp_path, **{"partitioning.fields": "k", "rolling_policy.interval": 30})
    with pytest.raises(
        RefusedError, match=r"column `k`: the value `v+…` makes a directory name of 302 bytes"
    ):
        sink.prepare(1, [batch(1, k=["v" * 300])])
