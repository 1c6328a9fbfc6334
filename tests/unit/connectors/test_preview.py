from pathlib import Path

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError
from headrace.connectors.preview import PreviewSink, shown_by
from headrace.model.registry import registry
from tests.support import SinkDriver

Shown = list[tuple[str, list[dict[str, object]]]]


@pytest.fixture
def shown() -> Shown:
    return []


def rows(*values: int) -> pa.RecordBatch:
    times = pa.array([0] * len(values), pa.timestamp("ns"))
    return pa.record_batch({"v": list(values), "_retract": [False] * len(values), "_timestamp": times})


def test_committed_rows_are_shown_once_without_their_event_time(tmp_path: Path, shown: Shown) -> None:
    driver = SinkDriver(lambda: PreviewSink(name="query 1"), tmp_path, job="preview once")
    with shown_by(lambda name, table: shown.append((name, table.to_pylist()))):
        data = driver.prepare(1, [rows(1)], [rows(2)])
        assert shown == []
        driver.commit(1, data)
        driver.commit(1, data)
        driver.run(2, [rows(3)])
    first = [{"v": 1, "_retract": False}, {"v": 2, "_retract": False}]
    assert shown == [("query 1", first), ("query 1", [{"v": 3, "_retract": False}])]


def test_an_epoch_without_rows_shows_nothing(tmp_path: Path, shown: Shown) -> None:
    driver = SinkDriver(PreviewSink, tmp_path, job="preview empty")
    with shown_by(lambda name, table: shown.append((name, table.to_pylist()))):
        driver.run(1, [])
    assert shown == []


def test_without_anybody_who_shows_them_rows_go_nowhere(tmp_path: Path) -> None:
    SinkDriver(PreviewSink, tmp_path, job="preview alone").run(1, [rows(1)])


def test_the_name_is_known_and_nobody_is_offered_it() -> None:
    assert registry.constructor("sink", "preview") is PreviewSink
    assert "preview" not in registry.names("sink")
    with pytest.raises(ConfigurationError, match="already"):
        registry.register("preview", PreviewSink, role="sink")
