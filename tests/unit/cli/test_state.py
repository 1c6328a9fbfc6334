import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from headrace.api.loading import load_pipeline
from headrace.api.pipeline import Pipeline
from headrace.cli.main import main
from headrace.cli.state import _ranges
from headrace.state.lock import StateLock
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process

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
        result = call("compact", state_dir)
        assert result.exit_code == 2
        assert "error[state-in-use]" in result.stderr
        assert call("show", state_dir).exit_code == 0


@pytest.mark.parametrize("command", ["list", "show", "compact", "cleanup"])
def test_a_directory_without_checkpoints_is_an_error_and_stays_as_it_is(command: str, tmp_path: Path) -> None:
    result = call(command, tmp_path / "absent")
    assert result.exit_code == 2
    assert "there is no checkpoint in" in result.stderr
    assert not (tmp_path / "absent").exists()


def test_numbers_are_told_as_ranges() -> None:
    assert _ranges([1, 2, 3, 5, 8, 9]) == "1–3, 5, 8–9"
