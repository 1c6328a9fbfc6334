"""Operators of shared libraries in C and C++, held by the host."""

import datetime as dt
import decimal
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.dataflow.runtime.hosts import CONTINUE, STOP, STOP_ALL
from tests.dataflow.native.conftest import Compile
from tests.dataflow.native.drive import EXAMPLE, SOURCES, Driver, happening, message, run_apart

ARRAYS = {
    "null": pa.nulls(3),
    "a timer's tick": pa.nulls(0),
    "bool": pa.array([True, None, False]),
    **{
        str(kind): pa.array([1, None, 3], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
    },
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "float16": pa.array([1.5, None], pa.float16()),
    "float32": pa.array([1.5, None], pa.float32()),
    "float64": pa.array([1.5, None]),
    "string": pa.array(["grün", None, ""]),
    "large_string": pa.array(["a", None], pa.large_string()),
    "string_view": pa.array(["short", None, "longer than twelve bytes"], pa.string_view()),
    "binary": pa.array([b"\0", None]),
    "large_binary": pa.array([b"\0", None], pa.large_binary()),
    "binary_view": pa.array([b"\0", None, bytes(100)], pa.binary_view()),
    "fixed_size_binary": pa.array([b"abc", None], pa.binary(3)),
    "date32": pa.array([dt.date(2026, 1, 1), None]),
    "date64": pa.array([dt.date(2026, 1, 1), None], pa.date64()),
    "time32": pa.array([dt.time(1, 2), None], pa.time32("ms")),
    "time64": pa.array([dt.time(1, 2), None], pa.time64("ns")),
    "timestamp": pa.array([dt.datetime(2026, 1, 1), None], pa.timestamp("us")),  # noqa: DTZ001
    "timestamp with a zone": pa.array([1, None], pa.timestamp("ns", "Europe/Berlin")),
    "duration": pa.array([dt.timedelta(seconds=1), None]),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "decimal128": pa.array([decimal.Decimal("1.25"), None]),
    "decimal256": pa.array([decimal.Decimal("1.25"), None], pa.decimal256(50, 2)),
    "list": pa.array([[1, None], None, []]),
    "large_list": pa.array([[1], None], pa.large_list(pa.int64())),
    "fixed_size_list": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "nested": pa.array([[{"a": [{"b": 1}]}], None]),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["b"])]
    ),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays([2, 5], [1, 2]),
    "empty": pa.array([], pa.int64()),
    "empty list": pa.array([], pa.list_(pa.string())),
    "sliced": pa.array([1, 2, 3, 4]).slice(1, 2),
    "sliced texts": pa.array(["a", "bc", None, "def"]).slice(1, 3),
    "sliced bools": pa.array([True] * 9 + [False] * 9).slice(7, 5),
    "a megabyte": pa.array(range(131_072)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_comes_back_as_it_went_in(behaviours: Driver, array: pa.Array) -> None:
    assert behaviours.give("echo", array) == CONTINUE
    ((output, echoed, _),) = behaviours.sent
    echoed.validate(full=True)
    assert output == "out"
    assert echoed.type == array.type
    assert echoed.equals(array)


def test_an_input_may_change_its_type(behaviours: Driver) -> None:
    for array in (pa.array([1]), pa.array([2]), pa.array(["a"]), pa.array([3])):
        behaviours.give("echo", array)
    assert behaviours.values == [[1], [2], ["a"], [3]]
    assert [value.type for _, value, _ in behaviours.sent] == [
        pa.int64(),
        pa.int64(),
        pa.string(),
        pa.int64(),
    ]


def test_what_an_operator_has_sent_outlives_it(compile_library: Compile) -> None:
    driver = Driver(compile_library(SOURCES / "behaviours.c"))
    driver.give("bytes", pa.array(list(b"kept"), pa.uint8()))
    driver.operator.close()
    assert driver.said == ["kept"]


def test_bytes_are_read_and_sent_by_the_header_alone(behaviours: Driver) -> None:
    data = pa.array(list(b"0123456789"), pa.uint8())
    for array in (data, data.slice(3, 4), data.slice(0, 0), pa.array([], pa.uint8())):
        behaviours.give("bytes", array)
    assert behaviours.said == ["0123456789", "3456", "", ""]
    with pytest.raises(RuntimeError, match="expected bytes"):
        behaviours.give("bytes", pa.array([1]))


def test_an_array_may_be_read_in_place(behaviours: Driver) -> None:
    behaviours.give("sum", pa.array([1, 2, 3, 4]).slice(1))
    assert behaviours.values == [[9]]


def test_events_other_than_inputs_reach_the_operator_in_order_and_a_reload_does_not(
    behaviours: Driver,
) -> None:
    behaviours.handle(
        message("twice"),
        happening("INPUT_CLOSED", "left/images"),
        happening("RELOAD", "op"),
        happening("ERROR", "", error="cannot read ünïts"),
        happening("INPUT_CLOSED", ""),
        happening("STOP", "MANUAL"),
    )
    assert behaviours.said == [
        "one",
        "two",
        "closed left/images",
        "error cannot read ünïts",
        "closed ",
        "stop",
    ]
    assert behaviours.operator.snapshot() == b"events 5"


def test_no_events_are_no_calls(behaviours: Driver) -> None:
    assert behaviours.handle() == CONTINUE
    assert behaviours.operator.snapshot() == b"events 0"


def test_of_metadata_the_trace_context_crosses(behaviours: Driver) -> None:
    behaviours.give("traced", open_telemetry_context="traceparent:1;", other=5)
    behaviours.give("traced")
    assert [metadata for _, _, metadata in behaviours.sent] == [
        {"open_telemetry_context": "traceparent:1;"},
        {"open_telemetry_context": ""},
    ]


@pytest.mark.parametrize(("name", "status"), [("stop", STOP), ("stop all", STOP_ALL)])
def test_after_a_stop_the_rest_of_the_events_is_not_handled(
    behaviours: Driver, name: str, status: int
) -> None:
    assert behaviours.handle(message("twice"), message(name), message("twice")) == status
    assert behaviours.said == ["one", "two"]


def test_an_unknown_status_is_an_error(behaviours: Driver) -> None:
    with pytest.raises(RuntimeError, match=r"libbehaviours\.so returned the status 7: expected 0"):
        behaviours.give("strange")


def test_an_error_of_the_operator_is_raised_with_its_text(behaviours: Driver) -> None:
    with pytest.raises(RuntimeError, match=r"^the disk is full$"):
        behaviours.handle(message("twice"), message("fail"), message("twice"))
    assert behaviours.said == ["one", "two"]
    with pytest.raises(RuntimeError, match="without saying why"):
        behaviours.give("fail silently")


def test_an_output_that_cannot_be_sent_is_told_to_the_operator_which_reports_it(behaviours: Driver) -> None:
    with pytest.raises(RuntimeError, match=r"^`nowhere` is not one of the outputs of camera") as raised:
        behaviours.give("undeclared")
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_output_that_cannot_be_sent_is_not_lost_when_the_operator_ignores_it(behaviours: Driver) -> None:
    with pytest.raises(ValueError, match="`nowhere` is not one of the outputs of camera"):
        behaviours.give("careless")
    assert behaviours.give("twice") == CONTINUE


def test_an_interrupt_while_an_output_is_taken_is_not_lost(behaviours: Driver) -> None:
    def interrupted(*_output: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        behaviours.operator.handle([message("twice")], interrupted)


def test_an_array_that_is_none_is_an_error_that_names_the_output(behaviours: Driver) -> None:
    with pytest.raises(RuntimeError, match="`out` was sent with an array that cannot be read"):
        behaviours.give("unreadable")


def test_sending_outside_of_an_event_is_an_error(behaviours: Driver) -> None:
    behaviours.give("keep")
    with pytest.raises(RuntimeError, match="`out` was sent outside of an event"):
        behaviours.operator.snapshot()
    assert behaviours.give("twice") == CONTINUE


def test_an_operator_that_cannot_start_says_why(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compile_library(SOURCES / "behaviours.c")
    monkeypatch.setenv("CANNOT_START", "1")
    with pytest.raises(RuntimeError, match=r"^no camera is connected$"):
        Driver(library)


def test_an_operator_that_cannot_end_says_why_once(behaviours: Driver) -> None:
    behaviours.give("stubborn")
    with pytest.raises(RuntimeError, match=r"^the motor does not stop$"):
        behaviours.operator.close()
    behaviours.operator.close()


def test_an_operator_begins_anew_after_a_failure(behaviours: Driver) -> None:
    behaviours.give("twice")
    with pytest.raises(RuntimeError, match="the disk is full"):
        behaviours.give("fail")
    behaviours.operator.restart()
    behaviours.give("twice")
    assert behaviours.operator.snapshot() == b"events 1"


def test_memory_is_saved_and_restored(compile_library: Compile) -> None:
    library = compile_library(SOURCES / "behaviours.c")
    first = Driver(library)
    first.handle(*[message("twice")] * 3)
    state = first.operator.snapshot()
    first.operator.close()
    assert state == b"events 3"
    second = Driver(library, state)
    second.give("twice")
    assert second.operator.snapshot() == b"events 4"


def test_memory_that_cannot_be_saved_or_restored_is_an_error(
    behaviours: Driver, compile_library: Compile
) -> None:
    behaviours.give("stubborn")
    with pytest.raises(RuntimeError, match="cannot be saved while the motor runs"):
        behaviours.operator.snapshot()
    with pytest.raises(RuntimeError, match="expected `events` and a number"):
        Driver(compile_library(SOURCES / "behaviours.c"), b"")


def test_an_operator_without_memory_starts_anew_and_says_so(compile_library: Compile) -> None:
    library = compile_library(SOURCES / "average.cpp")
    assert Driver(library).operator.snapshot() is None
    driver = Driver(library, b"of an earlier build")
    assert driver.logged == [("warning", "libaverage.so cannot restore its memory any more: it starts anew")]


def test_an_operator_in_cpp_has_the_same_three_functions(compile_library: Compile) -> None:
    driver = Driver(compile_library(SOURCES / "average.cpp"))
    driver.handle(message("numbers", pa.array([1.0, 2.0])), message("numbers", pa.array([6.0])))
    assert driver.values == [[1.5], [3.0]]
    with pytest.raises(RuntimeError, match="expected float64"):
        driver.give("numbers", pa.array([1]))
    assert driver.handle(happening("STOP", "MANUAL")) == STOP
    driver.operator.close()


def test_the_example_counts_and_remembers(compile_library: Compile) -> None:
    library = compile_library(EXAMPLE / "counter.c", "-std=c99", "-pedantic")
    driver = Driver(library)
    driver.handle(*[message("tick")] * 3)
    resumed = Driver(library, driver.operator.snapshot())
    resumed.give("tick")
    assert driver.values == [[1], [2], [3]]
    assert resumed.values == [[4]]
    with pytest.raises(RuntimeError, match="expected the 8 bytes of a count"):
        Driver(library, b"123")


CRASH = """
import sys
from pathlib import Path
from tests.dataflow.native.drive import Driver

Driver(Path(sys.argv[1])).give(sys.argv[2])
"""


@pytest.mark.parametrize(("name", "number"), [("abort", signal.SIGABRT), ("segfault", signal.SIGSEGV)])
def test_a_crash_of_the_library_ends_the_process_by_its_signal(
    compile_library: Compile, name: str, number: signal.Signals
) -> None:
    assert run_apart(CRASH, compile_library(SOURCES / "behaviours.c"), name).returncode == -number


GROWTH = """
import resource
import sys
from pathlib import Path
import pyarrow as pa
from headrace.dataflow.runtime.native import NativeOperator
from tests.dataflow.native.drive import message

def taken(output, data, metadata):
    if output == "nowhere":
        raise ValueError("not declared")

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

operator = NativeOperator(Path(sys.argv[1]), address="camera", log=print)
operator.start(None)
numbers, texts, data = pa.array([1, 2]), pa.array(["a", "b"]), pa.array([1, 2], pa.uint8())
events = [message("bytes", data), message("sum", numbers), message("echo", texts)]
events += [message("twice", numbers), message("twice", texts)]
failing = [message("undeclared"), message("careless"), message("unreadable"), message("fail")]

def rounds(count):
    for _ in range(count):
        operator.handle(events * 40, taken)
        for event in failing:
            try:
                operator.handle([event], taken)
            except (RuntimeError, ValueError):
                pass
        operator.snapshot()

rounds(50)
before = resident()
rounds(1000)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc to measure memory with")
def test_two_hundred_thousand_events_leave_nothing_behind(compile_library: Compile) -> None:
    result = run_apart(GROWTH, compile_library(SOURCES / "behaviours.c"))
    assert result.returncode == 0, result.stderr
    # If the smallest block were lost with each event, it would be more than 6 MB.
    assert int(result.stdout) < 3_000_000
