"""Files and tables in a real S3-compatible store, reached with `storage.*`: each row once, crashes or not."""

from __future__ import annotations

import contextlib
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.connectors.filesystem.source import FileSystemSource
from headrace.connectors.iceberg.sink import IcebergSink, load_catalog
from headrace.storage import base as storage_base
from headrace.storage.base import RequestRetry
from headrace.storage.object_store import ObjectStorage
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, ManualClock
from tests.servers.s3 import IDENTITY, SECRET, S3Server, run_server
from tests.support import plan, read_range
from tests.unit.connectors.rolling import ROWS, CrashAfter, pipeline, run, run_into_crash


@pytest.fixture
def url(s3_server: S3Server) -> str:
    return f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"


def settings(server: S3Server) -> dict[str, Any]:
    """The store's settings by the names that the options have."""
    return {
        "storage.aws_endpoint": server.endpoint,
        "storage.aws_access_key_id": IDENTITY,
        "storage.aws_secret_access_key": SECRET,
        "storage.aws_region": "us-east-1",
        "storage.allow_http": "true",
    }


@pytest.fixture
def storage(s3_server: S3Server) -> dict[str, Any]:
    """The settings of the store; nothing is in the environment."""
    return settings(s3_server)


def rows_of(source: FileSystemSource, sizes: list[int]) -> list[dict[str, Any]]:
    offsets = plan(source, sizes, start=100.0, now=101.0)
    return read_range(source, offsets[0], offsets[-1], parallelism=3)


@pytest.mark.parametrize(("form", "calls"), [("json", 1.5), ("json", 7), ("parquet", 6.5)])
def test_files_of_a_store_hold_each_row_once_after_a_crash(
    url: str,
    storage: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    calls: float,
) -> None:
    clock, crash = ManualClock(), CrashAfter(calls)
    options = {
        "path": url,
        "format": form,
        "rolling_policy.interval": "4s",
        "partitioning.fields": "k",
        "filename.strategy": "serial",
        **storage,
    }
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "move", crash.wrap(ObjectStorage.move))
        patch.setattr(ObjectStorage, "delete_directory", crash.wrap(ObjectStorage.delete_directory))
        with pytest.raises(CrashError):
            run(pipeline("filesystem", **options), tmp_path / "state", clock)
    run(pipeline("filesystem", **options), tmp_path / "state", clock, parallelism=3)
    source = FileSystemSource(path=url, format=form, schema={"n": "int64", "k": "string"}, **storage)
    for sizes in ([17], [10**9]):
        rows = rows_of(source, sizes)
        assert sorted(row["n"] for row in rows) == list(range(ROWS))
        assert {row["k"] for row in rows} == {"k0", "k1", "k2"}
    assert "files" in source.reach()


def test_a_move_that_stopped_between_copy_and_removal_is_repeated(url: str, storage: dict[str, Any]) -> None:
    options = {name.removeprefix("storage."): value for name, value in storage.items()}
    directory = open_storage(url, options)
    directory.write(".staged/x", b"rows")
    directory.write("00001-000-000.json", b"rows")
    directory.move(".staged/x", "00001-000-000.json")
    assert [(file.path, file.size) for file in directory.list_files() or ()] == [("00001-000-000.json", 4)]
    assert directory.read("00001-000-000.json") == b"rows"
    assert not directory.exists(".staged/x")
    assert directory.children("") == ["00001-000-000.json"]
    single = open_storage(f"{url}/00001-000-000.json", options)
    assert [file.path for file in single.list_files() or ()] == [""]
    assert open_storage(f"{url}/nothing", options).list_files() is None
    with pytest.raises(ConfigurationError, match="there is no file or directory"):
        FileSystemSource(path=f"{url}/nothing", **storage).reach()


@pytest.mark.parametrize("step", ["metadata_written", "sink_committed:out"])
def test_a_delta_table_in_a_store_holds_each_row_once_after_a_crash(
    url: str, storage: dict[str, Any], tmp_path: Path, step: str
) -> None:
    clock, state = ManualClock(), tmp_path / "state"
    options = {"path": url, "rolling_policy.interval": "4s", "partitioning.fields": "k", **storage}
    assert run_into_crash(pipeline("delta", **options), state, clock, step, 4)
    run(pipeline("delta", **options), state, clock, epoch_rows=30)
    settings = {name.removeprefix("storage."): value for name, value in storage.items()}
    table = DeltaTable(url, storage_options=settings)
    assert sorted(table.to_pyarrow_table().column("n").to_pylist()) == list(range(ROWS))
    result = run(
        pipeline_from_delta(url, storage), tmp_path / "copy", ManualClock(), epoch_rows=50, idle_epochs=1
    )
    assert sorted(result.rows["copy"].column("n").to_pylist()) == list(range(ROWS))


def pipeline_from_delta(url: str, storage: dict[str, Any]) -> Any:
    import headrace as hr

    made = hr.Pipeline("copy")
    made.source("delta", id="in", path=url, **storage).sink("memory", name="copy", id="copy")
    return made


def test_an_iceberg_table_in_a_store_holds_each_row_once_after_a_crash(
    url: str, storage: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server does not know the checksums that newer clients send behind the content.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    clock, state = ManualClock(), tmp_path / "state"
    options = {
        "catalog.type": "sql",
        "catalog.url": f"sqlite:///{tmp_path}/catalog.db",
        "catalog.warehouse": url,
        "table_name": "rows",
        "rolling_policy.interval": "4s",
        "partitioning.fields": "bucket(n, 2)",
        **storage,
    }
    assert run_into_crash(pipeline("iceberg", **options), state, clock, "sink_committed:out", 4)
    run(pipeline("iceberg", **options), state, clock, epoch_rows=30)
    table = load_catalog(IcebergSink(**options).options).load_table("default.rows")
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == list(range(ROWS))
    assert table.location().startswith(url)


def test_a_store_that_restarts_or_goes_away_during_a_run_costs_no_row(tmp_path: Path) -> None:
    clock, state = ManualClock(), tmp_path / "state"
    (tmp_path / "store").mkdir()
    with contextlib.ExitStack() as running:
        server = running.enter_context(run_server(tmp_path / "store"))
        options = {"path": f"s3://{server.bucket}/rows", "format": "json", "rolling_policy.interval": "2s"}
        options |= settings(server)
        done: set[tuple[str, int]] = set()

        def disturb(step: str, epoch: int) -> None:
            if (step, epoch) in {("begin", 3), ("metadata_written", 5)} - done:
                done.add((step, epoch))
                running.close()
                if step == "begin":
                    running.enter_context(run_server(tmp_path / "store", server))

        with pytest.raises(ExternalError, match="cannot be") as caught:
            run(pipeline("filesystem", **options), state, clock, disturb)
        assert caught.value.retry
        assert SECRET not in str(caught.value)
        assert ("metadata_written", 5) in done
        running.enter_context(run_server(tmp_path / "store", server))
        run(pipeline("filesystem", **options), state, clock)
        source = FileSystemSource(path=options["path"], schema={"n": "int64"}, **settings(server))
        assert sorted(row["n"] for row in rows_of(source, [50])) == list(range(ROWS))


def test_wrong_keys_are_told(url: str, storage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_base, "FILES_RETRY", RequestRetry(0, timedelta(seconds=1)))
    wrong = {**storage, "storage.aws_secret_access_key": "not-the-secret"}
    with pytest.raises(ExternalError, match="cannot be listed") as caught:
        FileSystemSource(path=url, **wrong).reach()
    assert "not-the-secret" not in str(caught.value)
