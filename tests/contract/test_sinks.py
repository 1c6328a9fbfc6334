"""What every sink of the registry promises; a new one needs an entry in `case` and nothing else."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.base.errors import ConfigurationError, HeadraceError, ReplacedError
from headrace.connectors import base as connectors
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, MessageSink
from headrace.connectors.iceberg.sink import IcebergSink, load_catalog
from headrace.connectors.memory import collected
from headrace.model.operator import ArrowOperator
from headrace.model.registry import registry
from headrace.state.generation import Generation
from tests.support import WITH_SERVERS, SinkDriver, to_rows

Shown = Callable[[], list[dict[str, Any]]]


@dataclass
class Case:
    """A sink of the registry, and how to see what has become visible; None if nothing ever does."""

    name: str
    options: Mapping[str, Any]
    visible: Shown | None
    bad: Mapping[str, Any]
    folder: Path
    """Where its state is."""
    job: str = "job"
    inside: Sequence[tuple[Any, str]] = ()
    """Functions that a commit calls, each named by its owner: a run may be suspended before any of them."""

    def build(self) -> ArrowOperator:
        built = registry.build("sink", self.name, self.options)
        assert isinstance(built, ArrowOperator)
        return built

    @functools.cached_property
    def driver(self) -> SinkDriver:
        return SinkDriver(self.build, self.folder / "state", job=self.job)


def batch(*numbers: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "text": [text] * len(numbers),
            "_timestamp": pa.array(numbers, pa.int64()).cast(pa.timestamp("ns")),
        }
    )


def parts(case: Case, *batches: pa.RecordBatch) -> list[list[pa.RecordBatch]]:
    """The batches shared by as many subtasks as the sink allows."""
    if case.driver.make().max_parallelism == 1:
        return [list(batches)]
    return [[one] for one in batches]


def suspend_before(
    patch: pytest.MonkeyPatch, owner: Any, name: str, while_asleep: Callable[[], None]
) -> list[str]:
    """Let something else happen before the first call of a function; returns whether that was."""
    kept, asleep = getattr(owner, name), list[str]()

    def waking(*arguments: Any, **more: Any) -> Any:
        if not asleep:
            asleep.append(name)
            while_asleep()
        return kept(*arguments, **more)

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    patch.setattr(owner, name, staticmethod(waking) if is_static else waking)
    return asleep


class SinkContract:
    """The promises; a sink is held to them by a subclass `Test…` with a fixture `case`."""

    @pytest.fixture
    def shown(self, case: Case) -> Shown:
        if case.visible is None:
            pytest.skip(f"{case.name} shows nothing")
        return case.visible

    def test_what_is_not_committed_is_invisible(self, case: Case, shown: Shown) -> None:
        data = case.driver.prepare(1, *parts(case, batch(1), batch(2)))
        assert shown() == []
        case.driver.commit(1, data)
        assert shown() == [{"n": 1, "text": "x"}, {"n": 2, "text": "x"}]

    def test_a_commit_repeated_is_a_commit_once(self, case: Case, shown: Shown) -> None:
        case.driver.run(1, *parts(case, batch(1)))
        data = case.driver.prepare(2, *parts(case, batch(2, 3), batch(4)))
        for _ in range(3):
            case.driver.commit(2, data)
        assert [row["n"] for row in shown()] == [1, 2, 3, 4]
        case.driver.run(3, *parts(case, batch(5)))
        assert [row["n"] for row in shown()] == [1, 2, 3, 4, 5]

    def test_shares_in_any_order_and_by_several_attempts_are_a_commit_once(
        self, case: Case, shown: Shown, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for limit in ("_DRIVER_PARTS", "_DRIVER_BYTES"):
            monkeypatch.setattr(connectors, limit, 0)
        driver = case.driver
        driver.run(1, *parts(case, batch(1)))
        for epoch in (2, 3):
            data = driver.prepare(
                epoch, *parts(case, batch(epoch * 10), batch(epoch * 10 + 1, epoch * 10 + 2))
            )
            shares = driver.make().commit_shares(data)
            if not shares:
                pytest.skip(f"{case.name} commits on the driver")
            for share in (*reversed(range(len(shares))), *range(len(shares))):
                driver.commit(epoch, shares[share], share=share, shares=len(shares))
            driver.commit(epoch, data)  # as the next run does if the epoch was not marked as committed
        driver.run(4, *parts(case, batch(40)))
        assert sorted(row["n"] for row in shown()) == [1, 20, 21, 22, 30, 31, 32, 40]

    def test_an_attempt_that_was_not_committed_leaves_nothing(self, case: Case, shown: Shown) -> None:
        case.driver.run(1, *parts(case, batch(1)))
        saved = dict(case.driver.saved)
        case.driver.prepare(2, *parts(case, batch(666)))
        case.driver.saved = saved
        case.driver.run(2, *parts(case, batch(2)))
        assert [row["n"] for row in shown()] == [1, 2]

    def test_a_run_that_was_replaced_publishes_nothing_after_its_successor(
        self, case: Case, shown: Shown
    ) -> None:
        driver = case.driver
        driver.take_over()
        driver.run(1, *parts(case, batch(1)))
        data = driver.prepare(2, *parts(case, batch(2, 3), batch(4)))
        replaced = driver.take_over()
        driver.commit(2, data)
        driver.run(3, *parts(case, batch(5)))
        assert [row["n"] for row in shown()] == [1, 2, 3, 4, 5]
        # It was suspended at the beginning of its commit, behind the check of the engine.
        newest, driver.claim = driver.claim, replaced
        with pytest.raises(ReplacedError, match="another run"):
            driver.commit(2, data)
        assert [row["n"] for row in shown()] == [1, 2, 3, 4, 5]
        driver.claim = newest
        driver.run(4, *parts(case, batch(6)))
        assert [row["n"] for row in shown()] == [1, 2, 3, 4, 5, 6]

    def test_a_run_that_is_suspended_inside_a_commit_adds_nothing_to_what_its_successor_wrote(
        self, case: Case, shown: Shown, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not case.inside:
            pytest.skip(f"{case.name} does not say what its commits call")
        driver, expected = case.driver, [1]
        driver.take_over()
        driver.run(1, *parts(case, batch(1)))
        for epoch, (owner, name) in enumerate(case.inside, 1):
            numbers = [epoch * 10 + place for place in range(4)]
            data = driver.prepare(epoch * 2, *parts(case, batch(*numbers[:2]), batch(numbers[2])))

            def take_over(epoch: int = epoch, data: Any = data, last: int = numbers[3]) -> None:
                driver.take_over()
                driver.commit(epoch * 2, data)
                driver.run(epoch * 2 + 1, *parts(case, batch(last)))

            with monkeypatch.context() as patch:
                asleep = suspend_before(patch, owner, name, take_over)
                # One that was suspended behind the effect has nothing left to do.
                with contextlib.suppress(ReplacedError):
                    driver.commit(epoch * 2, data)
            assert asleep, f"{name} was not called"
            expected += numbers
            assert [row["n"] for row in shown()] == expected, f"suspended before {name}"

    def test_a_run_that_is_suspended_while_it_sends_stops_when_it_wakes_up(
        self, case: Case, shown: Shown
    ) -> None:
        if not isinstance(case.driver.make(), MessageSink):
            pytest.skip(f"{case.name} does not send messages one by one")
        driver, checks = case.driver, itertools.count(1)
        data = driver.prepare(1, *parts(case, batch(*range(100))))
        lock = threading.Lock()

        class Suspended(Generation):
            """The claim of a run that is suspended behind a check, and replaced meanwhile."""

            def check(self, *, every: float = 0.0) -> None:
                with lock:
                    super().check(every=every)
                    if next(checks) == 10:
                        Generation.claim(self.storage, "another")
                        time.sleep(RECHECK_SECONDS)

        driver.claim = Suspended(driver.storage, Generation.claim(driver.storage, "run").number, "run")
        with pytest.raises(ReplacedError):
            driver.commit(1, data)
        assert [row["n"] for row in shown()] == list(range(len(shown())))
        assert len(shown()) < 20

    def test_the_same_rows_in_two_epochs_are_shown_twice(self, case: Case, shown: Shown) -> None:
        for epoch in (1, 2):
            case.driver.run(epoch, *parts(case, batch(7)))
        assert [row["n"] for row in shown()] == [7, 7]

    def test_rows_too_many_for_the_commit_data_are_staged(self, case: Case, shown: Shown) -> None:
        data = case.driver.prepare(1, *parts(case, batch(*range(100), text="y" * 1000)))
        assert sum(len(staged) for table in data.values() for staged in table.values()) < 1000
        case.driver.commit(1, data)
        case.driver.commit(1, data)
        assert [row["n"] for row in shown()] == list(range(100))

    def test_an_epoch_without_rows_shows_nothing(self, case: Case, shown: Shown) -> None:
        case.driver.run(1, [])
        case.driver.run(2, [batch().slice(0, 0)])
        assert shown() == []

    def test_rows_are_counted(self, case: Case) -> None:
        case.driver.run(1, *parts(case, batch(1, 2), batch(3)))
        assert case.driver.metrics["rows"] == 3

    def test_commit_data_is_json(self, case: Case) -> None:
        for table in case.driver.prepare(1, [batch(1)]).values():
            assert all(json.loads(staged) for staged in table.values())

    def test_a_sink_can_be_pickled_and_shown_on_one_line(self, case: Case) -> None:
        sink = cloudpickle.loads(cloudpickle.dumps(case.driver.make()))
        assert "\n" not in sink.display()

    def test_a_bad_option_is_named(self, case: Case) -> None:
        with pytest.raises(ConfigurationError, match=f"`{next(iter(case.bad))}`"):
            registry.build("sink", case.name, {**case.options, **case.bad})

    def test_every_option_is_described(self, case: Case) -> None:
        assert all(field.description for field in registry.options("sink", case.name).model_fields.values())


class SuspendedAfterCheck(Generation):
    """The claim of a run that is suspended right after it has checked it for the last time."""

    def __init__(self, claim: Generation, while_asleep: Callable[[], None]) -> None:
        super().__init__(claim.storage, claim.number, claim.run_id)
        self.while_asleep = while_asleep

    def check(self, **every: float) -> None:
        super().check(**every)
        self.while_asleep()


class TestSinks(SinkContract):
    """The sinks that need no server."""

    def test_a_run_suspended_after_its_last_check_repeats_nothing(self, case: Case, shown: Shown) -> None:
        driver = case.driver
        if all(
            delivery.promise != "exactly once"
            for delivery in registry.constructor("sink", case.name).deliveries
        ):
            pytest.skip(f"{case.name} may repeat rows")
        driver.take_over()
        driver.run(1, *parts(case, batch(1)))
        data = driver.prepare(2, *parts(case, batch(2, 3), batch(4)))
        claim, started = driver.claim, list[Future[None]]()
        assert claim is not None

        def go_on() -> None:
            driver.take_over()
            driver.commit(2, data)
            driver.run(3, *parts(case, batch(5)))

        def while_asleep() -> None:
            if not started:
                started.append(pool.submit(go_on))
                # It comes to its end, or waits for the one that is asleep.
                wait(started, timeout=1)

        with ThreadPoolExecutor(1) as pool:
            driver.claim = SuspendedAfterCheck(claim, while_asleep)
            with suppress(HeadraceError):
                driver.commit(2, data)
            started[0].result()
        assert [row["n"] for row in shown()] == [1, 2, 3, 4, 5]

    @pytest.fixture(params=[name for name in registry.names("sink") if name not in WITH_SERVERS])
    def case(
        self, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> Case:
        name: str = request.param
        job: str = request.node.name
        printed: list[str] = []

        def lines() -> list[dict[str, Any]]:
            printed.extend(capsys.readouterr().out.splitlines())
            return [json.loads(line) for line in printed]

        def file_lines() -> list[dict[str, Any]]:
            path = tmp_path / "out.json"
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

        def memory_rows() -> list[dict[str, Any]]:
            rows = to_rows(collected(job, "out").to_batches())
            return [{key: value for key, value in row.items() if key != "_timestamp"} for row in rows]

        def folder_lines() -> list[dict[str, Any]]:
            files = [path for path in (tmp_path / "out").rglob("*.json") if ".staged" not in path.parts]
            rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
            return sorted(rows, key=lambda row: row["n"])

        def delta_rows() -> list[dict[str, Any]]:
            if not DeltaTable.is_deltatable(str(tmp_path / "table")):
                return []
            rows: list[dict[str, Any]] = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
            return sorted(rows, key=lambda row: row["n"])

        catalog = {
            "catalog.type": "sql",
            "catalog.url": f"sqlite:///{tmp_path}/catalog.db",
            "catalog.warehouse": f"file://{tmp_path}/warehouse",
            "table_name": "rows",
        }

        def iceberg_rows() -> list[dict[str, Any]]:
            found = load_catalog(IcebergSink.Options.model_validate(catalog))
            if not found.table_exists("default.rows"):
                return []
            rows: list[dict[str, Any]] = found.load_table("default.rows").scan().to_arrow().to_pylist()
            return sorted(rows, key=lambda row: row["n"])

        cases: dict[str, tuple[dict[str, Any], Shown | None, dict[str, Any]]] = {
            "blackhole": ({}, None, {"x": 1}),
            "delta": (
                {"path": str(tmp_path / "table"), "rolling_policy.interval": 0},
                delta_rows,
                {"rolling_policy.file_size": "much"},
            ),
            "filesystem": (
                {"path": str(tmp_path / "out"), "rolling_policy.interval": 0},
                folder_lines,
                {"filename.strategy": "x"},
            ),
            "iceberg": ({**catalog, "rolling_policy.interval": 0}, iceberg_rows, {"catalog.type": "x"}),
            "memory": ({"name": "out"}, memory_rows, {"name": ""}),
            "single_file": ({"path": str(tmp_path / "out.json")}, file_lines, {"path": ""}),
            "stdout": ({}, lines, {"format": "xml"}),
        }
        options, visible, bad = cases[name]
        return Case(name, options, visible, bad, tmp_path, job)
