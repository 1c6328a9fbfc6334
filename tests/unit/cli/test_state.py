import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.api.loading import load_pipeline
from headrace.api.pipeline import Pipeline
from headrace.cli.main import main
from headrace.cli.state import _ranges
from headrace.connectors.received import ReceivedLog
from headrace.state.backend import ParquetBackend
from headrace.state.lock import StateLock
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, ManualClock, run_in_process
from tests.unit.connectors import rolling

PIPELINE = """
import pyarrow as pa
import headrace as hr


class Totals(hr.ArrowOperator):
    def tables(self):
        schema = pa.schema([("k", pa.int64()), ("label", pa.string()), ("total", pa.int64())])
        return [hr.keyed_table_config("totals", "the sum of each key", schema, key=["k"])]

    def process_batch(self, batch, ctx, collector):
        sums = pa.Table.from_batches([batch]).group_by("k").aggregate([("counter", "sum")]).to_pylist()
        rows = [{"k": r["k"], "label": f"key {r['k']}", "total": r["counter_sum"]} for r in sums]
        ctx.keyed_table("totals").put(pa.RecordBatch.from_pylist(rows, schema=self.tables()[0].schema))
        collector.collect(batch)


def keyed(batch):
    keys = pa.array([n % 5 for n in batch["counter"].to_pylist()], pa.int64())
    return batch.append_column("k", keys)


pipeline = hr.Pipeline("totals")
numbers = pipeline.source(hr.ImpulseSource(message_count=1000, event_time_interval="1s", start_time=0))
numbers.map(keyed).key_by("k").apply(Totals(), id="sums").sink(hr.BlackholeSink())
"""


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a pipeline that was stopped after four epochs."""
    folder = tmp_path_factory.mktemp("state")
    (folder / "totals.py").write_text(PIPELINE)
    run_in_process(load_pipeline(str(folder / "totals.py")), folder / "state", max_epochs=4, epoch_rows=100)
    return folder / "state"


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["state", *map(str, args)])


def lines(*args: str | Path) -> list[dict[str, Any]]:
    result = call(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_list_shows_every_checkpoint(state_dir: Path) -> None:
    result = call("list", state_dir)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("committed") == 4
    assert [one["epoch"] for one in lines("list", state_dir)] == [1, 2, 3, 4]


def test_a_checkpoint_whose_sinks_have_not_committed_is_only_saved(tmp_path: Path) -> None:
    def crash(step: str, epoch: int) -> None:
        if (step, epoch) == ("metadata_written", 2):
            raise CrashError

    pipeline = Pipeline("saved")
    pipeline.source("impulse", message_count=30).sink("memory")
    with pytest.raises(CrashError):
        run_in_process(pipeline, tmp_path, epoch_rows=10, on_step=crash)
    rows = call("list", tmp_path).stdout.splitlines()
    assert "committed" in rows[-2]
    assert "saved" in rows[-1]


def test_show_tells_operators_tables_and_offsets(state_dir: Path) -> None:
    result = call("show", state_dir)
    assert result.exit_code == 0, result.stderr
    assert "4 of pipeline `totals`" in result.stdout
    assert "sums_totals" in result.stdout
    assert "source ImpulseSource_1  continues at" in result.stdout


def test_show_takes_an_older_checkpoint(state_dir: Path) -> None:
    (told,) = lines("show", state_dir, "--epoch", "2")
    assert told["metadata"]["epoch"] == 2
    assert told["operators"][0]["tables"][0]["name"] == "totals"


def test_a_checkpoint_that_is_not_there_is_an_error(state_dir: Path) -> None:
    result = call("show", state_dir, "--epoch", "99")
    assert result.exit_code == 2
    assert "99" in result.stderr


def test_query_runs_sql_over_the_rows(state_dir: Path) -> None:
    sql = "SELECT k, label FROM sums_totals ORDER BY k LIMIT 2"
    assert lines("query", state_dir, sql) == [{"k": 0, "label": "key 0"}, {"k": 1, "label": "key 1"}]
    table = call("query", state_dir, sql).stdout.splitlines()
    assert table[0].split() == ["k", "label"]
    assert table[2].split() == ["0", "key", "0"]


def test_an_unknown_table_suggests_near_ones(state_dir: Path) -> None:
    result = call("query", state_dir, "SELECT * FROM sums_total")
    assert result.exit_code == 2
    assert "sums_totals" in result.stderr


def test_export_writes_parquet_files(state_dir: Path, tmp_path: Path) -> None:
    result = call("export", state_dir, tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    (file,) = result.stdout.splitlines()
    assert pq.read_table(file).num_rows == 5


def test_compact_and_cleanup_keep_the_rows(tmp_path: Path) -> None:
    (tmp_path / "totals.py").write_text(PIPELINE)
    state = tmp_path / "state"
    run_in_process(load_pipeline(str(tmp_path / "totals.py")), state, max_epochs=4, epoch_rows=100)
    sql = "SELECT * FROM sums_totals ORDER BY k"
    before = lines("query", state, sql)
    (report,) = lines("compact", state)
    assert report["files_after"] < report["files_before"]
    assert lines("cleanup", state, "--keep", "1") == [{"removed": [1, 2, 3]}]
    assert lines("query", state, sql) == before
    assert call("cleanup", state).stdout == "nothing to remove\n"
    assert "after" in call("compact", state).stdout


def test_what_changes_state_is_refused_while_a_run_holds_it(state_dir: Path) -> None:
    with StateLock(open_storage(str(state_dir))):
        for command in ("compact", "cleanup", "repair"):
            result = call(command, state_dir)
            assert result.exit_code == 2
            assert "error[state-in-use]" in result.stderr
        assert call("verify", state_dir).exit_code == 0
        assert call("show", state_dir).exit_code == 0


@pytest.mark.parametrize("command", ["list", "show", "verify", "compact", "cleanup", "repair"])
def test_a_directory_without_checkpoints_is_an_error_and_stays_as_it_is(command: str, tmp_path: Path) -> None:
    result = call(command, tmp_path / "absent")
    assert result.exit_code == 2
    assert "there is no checkpoint in" in result.stderr
    assert not (tmp_path / "absent").exists()


def test_numbers_are_told_as_ranges() -> None:
    assert _ranges([1, 2, 3, 5, 8, 9]) == "1–3, 5, 8–9"


def rolling_state(folder: Path) -> Path:
    """The state of a run that was killed in epoch 4: rows wait for a file, and the epoch is unfinished."""
    state = folder / "state"
    pipeline = rolling.pipeline("filesystem", path=str(folder / "out"), **{"rolling_policy.interval": "1h"})
    assert rolling.run_into_crash(pipeline, state, ManualClock(), "operators_written", 4)
    return state


def files_below(state: Path) -> set[str]:
    paths = {str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()}
    return paths - {"lock"}


def test_verify_counts_the_files_of_each_kind(tmp_path: Path) -> None:
    state = rolling_state(tmp_path)
    results = lines("verify", state)
    assert [result["epoch"] for result in results] == [1, 2, 3]
    assert [result["files"]["waiting"] for result in results] == [2, 4, 6]  # a file of each subtask
    assert all(result["files"]["metadata"] == 2 for result in results)
    assert all(result["files"]["state files"] for result in results)
    assert all(result["problems"] == [] and result["unchecked"] == 0 for result in results)
    assert lines("verify", state, "--epoch", "2") == results[1:2]
    table = call("verify", state).stdout.splitlines()
    assert table[0].split()[:3] == ["epoch", "metadata", "state"]
    assert all(row.endswith("whole") for row in table[2:])


def test_verify_names_a_damaged_file_and_the_last_whole_checkpoint(tmp_path: Path) -> None:
    state = rolling_state(tmp_path)
    path = min((state / "staged/out/0000000003").iterdir())
    path.write_bytes(b"?" + path.read_bytes()[1:])
    result = call("verify", state)
    assert result.exit_code == 1
    assert f"`staged/out/0000000003/{path.name}` is damaged" in result.stdout
    assert "1 of 3 checkpoints are damaged: 3" in result.stderr
    assert "the last whole checkpoint is epoch 2" in result.stderr
    assert call("verify", state, "--epoch", "2").exit_code == 0
    assert call("verify", state, "--epoch", "9").exit_code == 2


def test_verify_reads_received_messages_that_no_checkpoint_has_read(tmp_path: Path) -> None:
    state = rolling_state(tmp_path)
    storage = open_storage(str(state))
    log = ReceivedLog(storage, "rows")
    for part in (1, 2, 3):
        log.append(part, [pa.record_batch({"a": [part]})], ended=False)
    backend = ParquetBackend(storage)
    metadata = backend.load_checkpoint_metadata("", 3)
    storage.delete("checkpoints/checkpoint-0000003/metadata-0000001.json")
    offsets = {**metadata.offsets, "sources": {"rows": {"received": log.position(1)}}}
    backend.write_checkpoint_metadata(replace(metadata, offsets=offsets))
    (result,) = lines("verify", state, "--epoch", "3")
    assert result["files"]["received"] == 2
    storage.delete("received/rows/0000000002.arrow")
    assert call("verify", state, "--epoch", "3").exit_code == 1


def test_repair_removes_what_no_checkpoint_refers_to_and_nothing_else(tmp_path: Path) -> None:
    state = rolling_state(tmp_path)
    (state / "checkpoints" / f".{'0' * 32}.tmp").write_bytes(b"half")
    (state / "checkpoints/checkpoint-0000002/operator-out/table-open-000-stray.parquet").write_bytes(b"")
    (state / "received/rows").mkdir(parents=True)
    (state / "received/rows/0000000001.arrow").write_bytes(b"never removed")
    before, whole = files_below(state), lines("verify", state)

    (report,) = lines("repair", state, "--dry-run")
    assert files_below(state) == before
    assert "would be removed" in call("repair", state, "--dry-run").stdout
    strays = {path for path in before if "0000004" in path or "stray" in path or path.endswith(".tmp")}
    assert set(report["removed"]) == strays
    assert any(path.startswith("staged/") for path in strays)

    result = call("repair", state)
    assert result.exit_code == 0, result.stderr
    assert f"{len(strays)} files" in result.stdout
    assert files_below(state) == before - strays
    assert lines("verify", state) == whole
    assert call("repair", state).stdout == "nothing to remove\n"


def test_repair_keeps_what_a_sink_has_staged_in_a_form_of_its_own(tmp_path: Path) -> None:
    class OwnSink(hr.ArrowOperator):
        def process_batch(self, batch: Any, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
            ctx.storage.write(f"{ctx.staging}/rows", b"rows")

        def handle_checkpoint(self, barrier: Any, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
            ctx.insert_committing_data("rows", b"\xffnot JSON")

    pipeline = Pipeline("own")
    pipeline.source("impulse", message_count=30).sink(OwnSink(), id="own")
    run_in_process(pipeline, tmp_path / "state", epoch_rows=10)
    before = files_below(tmp_path / "state")
    assert any(path.endswith("/rows") for path in before)
    assert call("repair", tmp_path / "state").stdout == "nothing to remove\n"
    assert files_below(tmp_path / "state") == before


def test_repair_removes_nothing_if_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    state = rolling_state(tmp_path)
    (state / "checkpoints/checkpoint-0000002/operator-out/metadata-0000001.json").write_bytes(b"{")
    before = files_below(state)
    result = call("repair", state)
    assert result.exit_code == 1
    assert "nothing was removed" in result.stderr
    assert files_below(state) == before
