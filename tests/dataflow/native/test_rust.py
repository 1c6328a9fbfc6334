"""Operators built with dora's own crates: in Rust, and in C with dora's C functions."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.dataflow.runtime.hosts import STOP, STOP_ALL
from tests.dataflow.native.drive import Driver, happening, message
from tests.dataflow.native.test_native import ARRAYS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def counter(rust_libraries: Path) -> Driver:
    return Driver(rust_libraries / "librust_operator.so")


def test_an_operator_in_rust_counts_and_stops(counter: Driver) -> None:
    assert counter.handle(*[message("count")] * 3, happening("STOP", "MANUAL"), message("count")) == STOP
    assert [(name, value.to_pylist()) for name, value, _ in counter.sent] == [
        ("count", [1]),
        ("count", [2]),
        ("count", [3]),
    ]
    assert counter.give("stop all") == STOP_ALL
    counter.operator.close()


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_goes_through_rust_and_comes_back(counter: Driver, array: pa.Array) -> None:
    counter.handle(message("echo", array), message("echo", array))
    for _, echoed, _ in counter.sent:
        echoed.validate(full=True)
        assert echoed.type == array.type
        assert echoed.equals(array)
    assert len(counter.sent) == 2


def test_closed_inputs_and_errors_reach_an_operator_in_rust(counter: Driver) -> None:
    counter.handle(happening("INPUT_CLOSED", "left"), happening("ERROR", "", error="broken"))
    assert counter.values == [["closed left"], ["error broken"]]


def test_the_trace_context_reaches_an_operator_in_rust(counter: Driver) -> None:
    counter.give("traced", open_telemetry_context="traceparent:1;")
    counter.give("traced")
    assert counter.values == [["traceparent:1;"], [""]]


def test_an_error_in_rust_is_raised_with_its_text(counter: Driver) -> None:
    with pytest.raises(RuntimeError, match=r"^the disk is full$"):
        counter.give("fail")


def test_a_panic_in_rust_is_an_error_and_no_crash(counter: Driver, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="0 is not even"):
        counter.give("panic")
    assert "panicked" in capfd.readouterr().err


def test_an_operator_in_rust_that_cannot_start_says_why(
    rust_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANNOT_START", "1")
    with pytest.raises(RuntimeError, match="no camera is connected"):
        Driver(rust_libraries / "librust_operator.so")


def test_an_undeclared_output_is_an_error_in_rust_reported_or_not(counter: Driver) -> None:
    with pytest.raises(RuntimeError, match=r"^`nowhere` is not one of the outputs of camera"):
        counter.give("undeclared")
    with pytest.raises(ValueError, match=r"^`nowhere` is not one of the outputs of camera"):
        counter.give("careless")


def test_an_operator_in_rust_is_saved_and_restored(rust_libraries: Path, counter: Driver) -> None:
    counter.handle(*[message("count")] * 3)
    state = counter.operator.snapshot()
    assert state == (3).to_bytes(8, "little")
    resumed = Driver(rust_libraries / "librust_operator.so", state)
    resumed.give("count")
    assert resumed.values == [[4]]
    with pytest.raises(RuntimeError, match="expected 8 bytes, got 2"):
        Driver(rust_libraries / "librust_operator.so", b"ab")


def test_an_operator_linked_with_doras_c_functions_runs(rust_libraries: Path) -> None:
    driver = Driver(rust_libraries / "liblinked.so")
    data = pa.array(list(b"0123456789"), pa.uint8())
    driver.handle(message("out", data), message("said", data.slice(2, 3)), message("out", data.slice(0, 0)))
    assert [name for name, _, _ in driver.sent] == ["out", "said", "out"]
    assert driver.said == ["0123456789", "234", ""]
    with pytest.raises(RuntimeError, match="`elsewhere` is not one of the outputs"):
        driver.give("elsewhere", data)
    driver.operator.close()
