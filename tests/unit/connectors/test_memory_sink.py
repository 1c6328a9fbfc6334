from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError
from headrace.connectors.memory import MemorySink, collected, take_collected
from tests.support import SinkDriver


def test_rows_are_kept_by_job_and_name_until_they_are_taken(tmp_path: Path) -> None:
    for job in ("one", "two"):
        for name in ("a", "b"):
            driver = SinkDriver(partial(MemorySink, name), tmp_path, job=job)
            driver.run(1, [pa.record_batch({"v": [f"{job} {name}"]})])
    assert collected("one", "a").to_pylist() == [{"v": "one a"}]
    assert {name: table.to_pylist() for name, table in take_collected("one").items()} == {
        "a": [{"v": "one a"}],
        "b": [{"v": "one b"}],
    }
    assert take_collected("one") == {}
    assert collected("one", "a").num_rows == 0
    assert collected("two", "b").to_pylist() == [{"v": "two b"}]
    take_collected("two")


def test_rows_come_in_the_order_of_epochs_and_subtasks(tmp_path: Path) -> None:
    driver = SinkDriver(lambda: MemorySink("a"), tmp_path, job="order")
    for epoch in (9, 10):
        driver.run(epoch, *[[pa.record_batch({"v": [epoch * 100 + n]})] for n in range(12)])
    values = [row["v"] for row in take_collected("order")["a"].to_pylist()]
    assert values == sorted(values)


def test_a_sink_takes_its_name_or_its_options() -> None:
    assert (
        MemorySink("x").options
        == MemorySink(name="x").options
        == MemorySink(MemorySink.Options(name="x")).options
    )
    with pytest.raises(ConfigurationError, match="name"):
        MemorySink("")
