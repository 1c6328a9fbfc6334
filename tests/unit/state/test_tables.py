"""The laws of the three kinds of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import IncompatibleStateError, PlanError
from headrace.base.keys import _COMBINE, _MULTIPLY_1, _MULTIPLY_2, _NULL, _SEED, hash_array, hash_key
from headrace.state.config import (
    global_table_config,
    keyed_table_config,
    timestamp_table_config,
)
from headrace.state.global_table import decode_value, encode_value
from headrace.state.runs import plan_compaction, size_level
from tests.unit.state.harness import Life

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])
PAIRS = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("v", pa.int64())])
TIMED = pa.schema([("_timestamp", pa.timestamp("ns")), ("k", pa.string()), ("v", pa.int64())])
SECOND = 10**9


def keyed_life(root: Path, **options: Any) -> Life:
    return Life(root, [keyed_table_config("t", "", KEYED, key=["id"])], **options)


def table(life: Life, subtask: int = 0, name: str = "t") -> Any:
    return life.managers[subtask].get(name)


def rows(schema: pa.Schema, *values: tuple[Any, ...]) -> pa.RecordBatch:
    columns = list(zip(*values, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def ids(*values: int | None) -> pa.RecordBatch:
    return rows(pa.schema([("id", pa.int64())]), *((value,) for value in values))


def keys(*values: str | None) -> pa.RecordBatch:
    return rows(pa.schema([("k", pa.string())]), *((value,) for value in values))


def values_of(found: pa.Table) -> list[int]:
    return sorted(found.column("v").to_pylist())


def test_a_get_is_aligned_with_its_request(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    table(life).put(rows(KEYED, (1, "one"), (2, "two"), (None, "null")))
    life.commit()
    table(life).put(rows(KEYED, (2, "new"), (3, "three")))
    found, present = table(life).get(ids(3, 9, 2, None, 1, 2))
    assert found.column("v").to_pylist() == ["three", None, "new", "null", "one", "new"]
    assert present.tolist() == [True, False, True, True, True, True]
    assert found.column("id").to_pylist() == [3, None, 2, None, 1, 2]


def test_the_last_row_of_a_key_in_a_batch_wins(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    table(life).put(rows(KEYED, (1, "a"), (2, "b"), (1, "c")))
    assert table(life).get(ids(1))[0].column("v").to_pylist() == ["c"]


def test_an_empty_table_and_an_empty_request_are_fine(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    found, present = table(life).get(ids())
    assert found.num_rows == 0
    assert present.tolist() == []
    assert found.schema == KEYED
    assert table(life).get(ids(1))[1].tolist() == [False]
    assert list(table(life).scan()) == []
    table(life).put(rows(KEYED))
    life.commit()
    assert life.restored is not None
    assert life.restored.files() == []


def colliding_pair(a: int, b: int, other: int) -> int:
    """The `b` that gives the key (other, b) the same hash as (a, b)."""

    def word(value: int) -> np.uint64:
        return np.uint64(hash_array(pa.array([value], pa.int64()))[0])

    with np.errstate(over="ignore"):
        return number_hashed_as(int(word(b) ^ (word(a) * _COMBINE) ^ (word(other) * _COMBINE)))


def number_hashed_as(x: int) -> int:
    """The one number that has this hash."""
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(int(_MULTIPLY_2), -1, 2**64) % 2**64
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(int(_MULTIPLY_1), -1, 2**64) % 2**64
    x ^= (x >> 30) ^ (x >> 60)
    return int(np.uint64((x - int(_SEED)) % 2**64).astype(np.int64))


HASHED_LIKE_NULL = number_hashed_as(int(_NULL))


def test_keys_that_share_a_hash_are_still_different_keys(tmp_path: Path) -> None:
    twin = colliding_pair(1, 2, 7)
    batch = rows(PAIRS, (1, 2, 10), (7, twin, 20), (1, 2, 30))
    assert len(set(hash_key(batch, ["a", "b"]).tolist())) == 1
    config = keyed_table_config("t", "", PAIRS, key=["a", "b"])
    life = Life(tmp_path, [config])
    table(life).put(batch)
    for _ in range(2):
        found, _ = table(life).get(rows(PAIRS, (7, twin, 0), (1, 2, 0)))
        assert found.column("v").to_pylist() == [20, 30]
        life.commit()
    table(life).delete(rows(PAIRS, (1, 2, 0)))
    life.commit()
    found, present = table(life).get(rows(PAIRS, (7, twin, 0), (1, 2, 0)))
    assert present.tolist() == [True, False]
    assert found.column("v").to_pylist() == [20, None]


def test_time_rows_whose_keys_share_a_hash_are_told_apart(tmp_path: Path) -> None:
    twin = colliding_pair(1, 2, 7)
    schema = pa.schema([("_timestamp", pa.timestamp("ns")), *PAIRS])
    config = timestamp_table_config("t", "", "1h", schema=schema, key=["a", "b"], order_by="key")
    life = Life(tmp_path, [config])
    table(life).insert(rows(schema, (0, 1, 2, 10), (0, 7, twin, 20)))
    life.commit()
    assert values_of(table(life).get(rows(PAIRS, (1, 2, 0)))) == [10]
    table(life).delete_key(rows(PAIRS, (1, 2, 0)))
    assert values_of(table(life).all()) == [20]


def test_time_rows_of_a_null_and_of_a_number_hashed_like_it_are_told_apart(tmp_path: Path) -> None:
    schema = pa.schema([("_timestamp", pa.timestamp("ns")), ("id", pa.int64()), ("v", pa.int64())])
    life = Life(tmp_path, [timestamp_table_config("t", "", "1h", schema=schema, key=["id"], order_by="key")])
    table(life).insert(rows(schema, (0, None, 1), (0, HASHED_LIKE_NULL, 2), (0, 5, 3)))
    for _ in range(2):
        assert values_of(table(life).get(ids(None))) == [1]
        assert values_of(table(life).get(ids(HASHED_LIKE_NULL))) == [2]
        assert values_of(table(life).get(ids(5, 5, 6))) == [3]
        life.commit()


def test_rows_that_come_and_go_in_one_epoch_are_not_saved(tmp_path: Path) -> None:
    config = timestamp_table_config("t", "", "1h", schema=TIMED, key=["k"], order_by="key")
    life = Life(tmp_path, [config])
    table(life).insert(rows(TIMED, (1, "a", 1), (9, "b", 2)))
    table(life).delete_time_range(None, 5)
    life.commit()
    assert life.restored is not None
    assert [file.rows for file in life.restored.files()] == [1]
    table(life).delete_value(rows(TIMED, (9, "b", 2)))
    table(life).insert(rows(TIMED, (9, "b", 2), (9, "a", 3)))
    life.commit()
    assert values_of(table(life).all()) == [2, 3]


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (pa.RecordBatch.from_pydict({"id": [1]}), "no column `v`"),
        (pa.RecordBatch.from_pydict({"id": ["1"], "v": ["a"]}), "column `id` .* is string"),
        (pa.RecordBatch.from_pydict({"id": [1], "v": ["a"], "w": [1]}), "column `w`"),
    ],
)
def test_a_batch_that_does_not_fit_the_schema_is_refused(
    tmp_path: Path, batch: pa.RecordBatch, problem: str
) -> None:
    with pytest.raises(PlanError, match=problem) as caught:
        table(keyed_life(tmp_path)).put(batch)
    assert "`t`" in caught.value.message


def routed_life(root: Path, **options: Any) -> Life:
    return Life(root, [keyed_table_config("t", "", PAIRS, key=["a", "b"], route=["a"])], **options)


def test_keys_of_one_route_stay_together_at_any_parallelism(tmp_path: Path) -> None:
    life = routed_life(tmp_path, parallelism=3)

    def call(method: str, batch: pa.RecordBatch) -> list[Any]:
        """What each subtask that has rows of the batch returns."""
        made: list[Any] = []

        def act(manager: Any, part: pa.RecordBatch) -> None:
            made.append(getattr(manager.get("t"), method)(part))

        life.by_subtask(batch, ["a"], act)
        return made

    routes = [(a, b) for a in (1, 2, 3, None) for b in (1, 2, None)]
    call("put", rows(PAIRS, *((a, b, index) for index, (a, b) in enumerate(routes))))
    life.commit(parallelism=2)
    call("delete", rows(PAIRS, (2, 1, 0), (None, None, 0)))
    call("put", rows(PAIRS, (1, 2, 100)))
    life.commit(parallelism=4)
    asked = rows(PAIRS, *((a, None, 0) for a in (1, 2, 2, None, 9)))
    found = [tuple(row.values()) for part in call("below", asked) for row in part.to_pylist()]
    left = [(a, b, 100 if (a, b) == (1, 2) else index) for index, (a, b) in enumerate(routes)]
    expected = [row for row in left if row[0] != 3 and row[:2] not in {(2, 1), (None, None)}]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    [(batch, present)] = call("get", rows(PAIRS, (1, 2, 0), (1, 9, 0)))
    assert batch.column("v").to_pylist() == [100, None]
    assert list(present) == [True, False]


def test_routes_whose_hashes_begin_alike_are_told_apart(tmp_path: Path) -> None:
    first: dict[int, int] = {}
    hashes = hash_array(pa.array(np.arange(300_000)))
    pair = next(
        (first[high], value)
        for value, high in enumerate((hashes >> np.uint64(32)).tolist())
        if first.setdefault(high, value) != value
    )
    life = routed_life(tmp_path)
    table(life).put(rows(PAIRS, (pair[0], 1, 1), (pair[1], 1, 2)))
    life.commit()
    assert values_of(table(life).below(rows(PAIRS, (pair[1], 0, 0)))) == [2]
    assert values_of(table(life).below(rows(PAIRS, (pair[0], 0, 0), (pair[1], 0, 0)))) == [1, 2]


def test_a_route_that_the_key_does_not_begin_with_is_refused() -> None:
    with pytest.raises(PlanError, match="routed by b"):
        keyed_table_config("t", "", PAIRS, key=["a", "b"], route=["b"])


def test_the_order_of_columns_does_not_matter(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    table(life).put(rows(KEYED, (1, "a")).select(["v", "id"]))
    assert table(life).get(ids(1))[0].to_pylist() == [{"id": 1, "v": "a"}]


def test_a_row_of_another_subtask_is_refused_rather_than_lost(tmp_path: Path) -> None:
    life = keyed_life(tmp_path, parallelism=2)
    with pytest.raises(PlanError, match="another subtask"):
        table(life).put(rows(KEYED, *((number, "x") for number in range(50))))


def test_dictionaries_come_back_as_dictionaries(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("id", kind), ("v", kind)])
    life = Life(tmp_path, [keyed_table_config("t", "", schema, key=["id"])])
    batch = rows(pa.schema([("id", pa.string()), ("v", pa.string())]), ("a", "x"), ("b", "y"))
    table(life).put(batch.cast(schema))
    life.commit()
    assert next(table(life).scan()).schema == schema


def test_a_declared_table_is_found_and_a_near_name_suggested(tmp_path: Path) -> None:
    life = Life(tmp_path, [global_table_config("counts")])
    with pytest.raises(PlanError, match="did you mean `counts`"):
        table(life, name="count")


# ------------------------------------------------------------------------------------- time tables


def time_life(root: Path, **options: Any) -> Life:
    parallelism = options.pop("parallelism", 1)
    settings = {"key": ["k"], **options}
    config = timestamp_table_config("t", "", "10s", schema=TIMED, **settings)
    return Life(root, [config], parallelism=parallelism)


def test_rows_behind_the_retention_are_gone_and_so_are_their_files(tmp_path: Path) -> None:
    life = time_life(tmp_path)
    table(life).insert(rows(TIMED, (1 * SECOND, "a", 1), (5 * SECOND, "b", 2)))
    life.commit(1 * SECOND)
    table(life).insert(rows(TIMED, (14 * SECOND, "c", 3)))
    life.commit(14 * SECOND)
    assert values_of(table(life).all()) == [2, 3]
    life.commit(16 * SECOND)
    assert values_of(table(life).all()) == [3]
    assert life.restored is not None
    assert [file.rows for file in life.restored.files()] == [1]


def test_the_watermark_may_advance_within_an_epoch(tmp_path: Path) -> None:
    life = time_life(tmp_path)
    table(life).insert(rows(TIMED, (1 * SECOND, "a", 1)))
    life.managers[0].advance(12 * SECOND)
    assert table(life).all().num_rows == 0


def test_a_range_is_in_order_of_time_then_of_insertion(tmp_path: Path) -> None:
    life = time_life(tmp_path)
    table(life).insert(rows(TIMED, (2, "a", 1), (1, "b", 2)))
    life.commit()
    table(life).insert(rows(TIMED, (1, "c", 3), (2, "d", 4), (3, "e", 5)))
    assert table(life).range(1, 3).column("v").to_pylist() == [2, 3, 1, 4]
    assert table(life).min_time() == 1


def test_of_equal_rows_a_deletion_takes_one(tmp_path: Path) -> None:
    life = time_life(tmp_path)
    table(life).insert(rows(TIMED, (1, "a", 1), (1, "a", 1), (1, "a", 2)))
    life.commit()
    table(life).delete_value(rows(TIMED, (1, "a", 1)))
    assert values_of(table(life).all()) == [1, 2]
    table(life).insert(rows(TIMED, (1, "a", 1)))
    life.commit()
    assert values_of(table(life).all()) == [1, 1, 2]


def test_a_tombstone_never_touches_a_newer_row(tmp_path: Path) -> None:
    life = time_life(tmp_path)
    table(life).insert(rows(TIMED, (1, "a", 1)))
    life.commit()
    table(life).delete_key(keys("a", None))
    table(life).insert(rows(TIMED, (1, "a", 2), (1, None, 3)))
    life.commit()
    assert values_of(table(life).get(keys("a", None))) == [2, 3]


def test_a_tombstone_without_a_key_follows_its_row_through_rescales(tmp_path: Path) -> None:
    life = time_life(tmp_path, key=[], parallelism=2)
    table(life, 0).insert(rows(TIMED, (1, "x", 1)))
    table(life, 1).insert(rows(TIMED, (1, "y", 2), (1, "x", 1)))
    life.commit(parallelism=1)
    table(life).delete_value(rows(TIMED, (1, "y", 2), (1, "x", 1)))
    assert values_of(table(life).all()) == [1]
    life.commit(parallelism=2)
    assert [value for one in range(2) for value in values_of(table(life, one).all())] == [1]


def test_a_generation_replaces_the_one_before_for_good(tmp_path: Path) -> None:
    life = time_life(tmp_path, generational=True)
    table(life).insert(rows(TIMED, (9 * SECOND, "a", 1), (9 * SECOND, "b", 5)))
    life.commit(0)
    table(life).insert(rows(TIMED, (1 * SECOND, "a", 2)))
    life.commit(0)
    assert values_of(table(life).all()) == [2, 5]
    life.commit(12 * SECOND)  # the newest row of `a` has expired; the older one must not come back
    assert values_of(table(life).all()) == [5]
    assert values_of(table(life).range(0, None)) == [5]


def test_a_row_needs_its_time(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no `_timestamp`"):
        table(time_life(tmp_path)).insert(rows(TIMED, (None, "a", 1)))


def test_tombstones_do_not_pile_up(tmp_path: Path) -> None:
    life = time_life(tmp_path, order_by="key")
    table(life).insert(rows(TIMED, *((1, f"old{one}", 1) for one in range(20))))
    life.commit()
    for epoch in range(40):
        table(life).insert(rows(TIMED, *((1, f"{epoch}-{one}", 1) for one in range(10))))
        life.commit()
        table(life).delete_key(keys(*(f"{epoch}-{one}" for one in range(10))))
        life.commit()
    assert life.restored is not None
    assert sum(file.rows for file in life.restored.files()) < 150
    assert table(life).all().num_rows == 20


# ------------------------------------------------------------------------------------- global tables


@pytest.mark.parametrize(
    "value", [None, 1, -0.5, "é", b"\x00\xff", [1, b"x"], {"a": {"__bytes__": "no"}}, {"__object__": 1}]
)
def test_a_global_value_comes_back_as_it_was(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {3}}])
def test_a_value_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match="cannot be kept"):
        encode_value(value)


@pytest.mark.parametrize("key", [True, 1.5, None, ("a", b"x")])
def test_a_key_of_another_type_is_refused(tmp_path: Path, key: Any) -> None:
    life = Life(tmp_path, [global_table_config("t")])
    with pytest.raises(PlanError, match="cannot be a key"):
        table(life).insert(key, 1)


def test_a_subtask_writes_only_what_it_changed(tmp_path: Path) -> None:
    life = Life(tmp_path, [global_table_config("t")], parallelism=3)
    for subtask in range(3):
        table(life, subtask).insert(("subtask", subtask), subtask)
    life.commit()
    table(life, 1).insert(("subtask", 1), "changed")
    life.commit(parallelism=2)
    assert life.restored is not None
    assert [file.rows for file in life.restored.files() if file.epoch == 2] == [1]
    expected = {("subtask", 0): 0, ("subtask", 1): "changed", ("subtask", 2): 2}
    assert [table(life, one).get_all() for one in range(2)] == [expected, expected]


# ------------------------------------------------------------------------------------- life


def test_opening_tables_reads_nothing_and_untouched_ones_cost_nothing(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    table(life).put(rows(KEYED, (1, "a")))
    life.commit()
    assert life.restored is not None
    before = life.restored.files()
    for file in (tmp_path / "state").rglob("*.parquet"):
        file.unlink()
    life.wipe_cache()
    life.commit()
    assert life.restored.files() == before


def test_rows_of_an_older_version_are_migrated_and_saved_as_the_new_one(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    table(life).put(rows(KEYED, (1, "a"), (2, "b")))
    life.commit()
    table(life).delete(ids(2))
    life.commit()
    wider = pa.schema([*KEYED, ("n", pa.int64())])
    life.configs = [keyed_table_config("t", "", wider, key=["id"], version=2)]
    calls = []

    def migrate(name: str, version: int, old: pa.Table) -> pa.Table:
        calls.append((name, version, old.num_rows))
        return old.append_column("n", pa.array([7] * old.num_rows, pa.int64()))

    life.begin()
    with pytest.raises(IncompatibleStateError, match="version 1 and is declared as version 2"):
        table(life).get(ids(1))
    life.migrate = migrate
    life.begin()
    assert table(life).get(ids(1, 2))[0].column("n").to_pylist() == [7, None]
    assert calls == [("t", 1, 1), ("t", 1, 2)]
    table(life).put(rows(wider, (3, "c", 9)))
    life.commit()
    assert life.restored is not None
    assert {file.version for file in life.restored.files()} == {2}
    life.migrate = None
    life.begin()
    assert table(life).get(ids(1, 3))[0].column("n").to_pylist() == [7, 9]


def test_another_schema_with_the_same_version_is_refused(tmp_path: Path) -> None:
    life = keyed_life(tmp_path)
    table(life).put(rows(KEYED, (1, "a")))
    life.commit()
    life.configs = [
        keyed_table_config("t", "", pa.schema([("id", pa.int64()), ("v", pa.int64())]), key=["id"])
    ]
    with pytest.raises(IncompatibleStateError, match="column `v` as string and declares it as int64"):
        life.begin()
    life.configs = [keyed_table_config("t", "", KEYED, key=["v"])]
    with pytest.raises(IncompatibleStateError, match="key"):
        life.begin()


def test_the_order_of_a_time_table_may_change_between_runs(tmp_path: Path) -> None:
    life = time_life(tmp_path)
    table(life).insert(rows(TIMED, (3, "a", 1), (1, "b", 2), (2, "a", 3)))
    life.commit()
    life.configs = [timestamp_table_config("t", "", "10s", schema=TIMED, key=["k"], order_by="key")]
    life.begin()
    assert values_of(table(life).get(keys("a"))) == [1, 3]


@pytest.mark.parametrize("kind", ["keyed", "time", "key"])
def test_runs_of_more_than_a_million_rows_are_read_and_merged(tmp_path: Path, kind: str) -> None:
    count = 1_100_000
    numbers = np.arange(count)
    schema = pa.schema([("_timestamp", pa.timestamp("ns")), ("id", pa.int64()), ("v", pa.int64())])
    config = (
        keyed_table_config("t", "", schema, key=["id"])
        if kind == "keyed"
        else timestamp_table_config("t", "", "1h", schema=schema, key=["id"], order_by=kind)  # type: ignore[arg-type]
    )
    life = Life(tmp_path, [config])

    def batch(chosen: Any, value: int) -> pa.RecordBatch:
        times = pa.array(chosen).cast(pa.timestamp("ns"))
        return pa.RecordBatch.from_arrays(
            [times, pa.array(chosen), pa.array(np.full(len(chosen), value))], schema=schema
        )

    some = numbers[::100_003]
    asked = pa.RecordBatch.from_arrays([pa.array(some)], ["id"])
    if kind == "keyed":
        table(life).put(batch(numbers, 1))
        life.commit()
        table(life).put(batch(some[:3], 2))
        table(life).delete(asked.slice(3, 1))
        life.compact_after = 2
        life.commit()
        found, present = table(life).get(asked)
        assert found.column("v").to_pylist()[:5] == [2, 2, 2, None, 1]
        assert present.sum() == len(some) - 1
        assert sum(part.num_rows for part in table(life).scan()) == count - 1
    else:
        table(life).insert(batch(numbers, 1))
        assert table(life).get(asked).num_rows == len(some)
        life.commit()
        assert table(life).get(asked).num_rows == len(some)
        table(life).delete_key(asked)
        table(life).insert(batch(some[:1], 2))
        life.commit()
        assert table(life).all().num_rows == count - len(some) + 1
        assert table(life).range(count - 10, None).num_rows == 10
        assert table(life).min_time() == 0


def test_a_level_is_merged_when_it_is_full() -> None:
    assert plan_compaction([0, 0], 3) == []
    assert plan_compaction([0, 0, 0], 3) == [(0, 3, 1)]
    assert plan_compaction([1, 1, 0, 0, 0], 3) == [(0, 5, 2)]
    assert plan_compaction([1, 0, 0, 0], 3) == [(1, 4, 1)]
    # Runs of two subtasks with different histories: an older run counts as deep as a newer one.
    assert plan_compaction([0, 0, 1, 0], 3) == [(0, 3, 2)]


def test_a_large_run_is_not_merged_with_small_ones() -> None:
    assert size_level(10_000, 8) == 0
    assert size_level(10_000_000, 8) == 3
