"""Looking into saved state from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import StateInUseError, UserError
from headrace.state import inspect
from headrace.state.compaction import compact
from headrace.state.config import global_table_config, keyed_table_config
from headrace.state.lock import StateLock
from headrace.state.metadata import SavedOperator
from tests.unit.state.harness import Life

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def life(tmp_path: Path) -> Life:
    configs = [keyed_table_config("t", "words", KEYED, key=["id"]), global_table_config("g")]
    life = Life(tmp_path, configs, parallelism=2)
    for epoch in range(1, 5):
        batch = pa.RecordBatch.from_pydict({"id": [epoch, 0], "v": [f"v{epoch}", "last"]}, schema=KEYED)
        life.by_subtask(batch, ["id"], lambda one, part: table(one, "t").put(part))
        for number, manager in enumerate(life.managers):
            table(manager, "g").insert(("subtask", number), epoch)
        life.commit(epoch)
    gone = pa.RecordBatch.from_pydict({"id": [1]})
    life.by_subtask(gone, ["id"], lambda one, part: table(one, "t").delete(part))
    life.commit()
    return life


def table(manager: Any, name: str) -> Any:
    return manager.get(name)


def test_checkpoints_are_listed_and_described(life: Life) -> None:
    listed = inspect.list_checkpoints(life.storage)
    assert [one.epoch for one in listed] == [1, 2, 3, 4, 5]
    assert listed[-1].committed
    assert listed[-1].bytes > 0
    described = inspect.show(life.storage)
    (operator,) = described.operators
    assert [one.name for one in operator.tables] == ["t", "g"]
    assert operator.tables[0].columns == {"id": "int64", "v": "string"}
    assert operator.watermarks == {0: 4, 1: 4}
    assert described.offsets == {"source": {"lane": 5}}
    assert inspect.show(life.storage, 2).metadata.epoch == 2


def test_a_damaged_checkpoint_is_listed_with_its_problem(life: Life) -> None:
    Path(life.storage.url, "checkpoints/checkpoint-0000003/metadata.json").write_text("{")
    listed = inspect.list_checkpoints(life.storage)
    assert [one.epoch for one in listed if one.problem] == [3]


def test_live_rows_of_all_subtasks_are_shown(life: Life) -> None:
    rows = inspect.table_rows(life.storage, "op", "t").sort_by("id").to_pydict()
    assert rows == {"id": [0, 2, 3, 4], "v": ["last", "v2", "v3", "v4"]}
    assert inspect.table_rows(life.storage, "op", "t", epoch=1).num_rows == 2
    assert inspect.table_rows(life.storage, "op", "g").to_pydict() == {
        "key": ['["subtask",0]', '["subtask",1]'],
        "value": ["4", "4"],
    }


@pytest.mark.parametrize("name", ['"op.t"', "op_t"])
def test_tables_are_queried_by_either_name(life: Life, name: str) -> None:
    assert inspect.query(life.storage, f"select count(*) as n from {name}").to_pydict() == {"n": [4]}


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("select * from op_tt", "no table `op_tt`[\\s\\S]*`op_t`"),
        ("select iid from op_t", "no column `iid`[\\s\\S]*`id`"),
        ("selec 1", "cannot be run"),
        ("select nothing(1)", "cannot be run"),
        ("copy (select 1) to '/tmp/one.csv'", "cannot be run"),
        ("create external table other stored as csv location '/etc/hosts'", "cannot be run"),
    ],
)
def test_a_wrong_query_is_explained(life: Life, sql: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        inspect.query(life.storage, sql)


def test_wrong_names_are_answered_with_near_ones(life: Life) -> None:
    with pytest.raises(UserError, match="no operator `opp`"):
        inspect.table_rows(life.storage, "opp", "t")
    with pytest.raises(UserError, match="its tables are t, g"):
        inspect.table_rows(life.storage, "op", "nothing")


def test_an_empty_directory_is_said_to_be_empty(tmp_path: Path) -> None:
    empty = Life(tmp_path, [])
    assert inspect.list_checkpoints(empty.storage) == []
    with pytest.raises(UserError, match="no checkpoint"):
        inspect.show(empty.storage)


def test_export_writes_plain_parquet(life: Life, tmp_path: Path) -> None:
    paths = inspect.export(life.storage, str(tmp_path / "out"))
    assert [Path(path).name for path in paths] == ["op.t.parquet", "op.g.parquet"]
    assert pq.read_table(paths[0]).schema.names == ["id", "v"]


def test_offline_compaction_changes_files_and_not_rows(life: Life) -> None:
    before = [inspect.table_rows(life.storage, "op", name).to_pydict() for name in ("t", "g")]
    with StateLock(life.storage), pytest.raises(StateInUseError):
        compact(life.storage)
    report = compact(life.storage)
    assert report.files_after == 3
    assert report.files_before > 3
    assert report.rows_after == 6
    after = [inspect.table_rows(life.storage, "op", name).to_pydict() for name in ("t", "g")]
    assert sorted(after[0]["id"]) == sorted(before[0]["id"])
    assert after[1] == before[1]
    assert [life.backend.verify(epoch) for epoch in life.backend.epochs()] == [[]] * 5
    life.restored = life.backend.load_operator_metadata("job", SavedOperator("op", 5))
    life.begin(3)
    assert table(life.managers[2], "g").get(("subtask", 1)) == 4
    life.commit()
    assert inspect.cleanup(life.storage, 1) == [1, 2, 3, 4, 5]
    assert life.backend.verify(6) == []
    assert inspect.table_rows(life.storage, "op", "t").num_rows == 4
