"""`path:` nodes: real processes, given events and read."""

import datetime as dt
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import OperatorError
from headrace.dataflow.document.model import Unit
from headrace.dataflow.runtime.hosts import CONTINUE, STOP
from headrace.dataflow.runtime.process import ProcessNode

Start = Callable[..., Any]

AT = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
CLOSED = {"kind": "dora", "type": "INPUT_CLOSED", "id": "in"}
TOLD_TO_STOP = {"kind": "dora", "type": "STOP", "id": "MANUAL"}

DOUBLE = """
    import pyarrow as pa
    from dora import Node

    node = Node()
    for event in node:
        if event["type"] == "INPUT":
            node.send_output("out", pa.array([2 * one for one in event["value"].to_pylist()]))
    print("done")
"""
ECHO = """
    from dora import Node

    node = Node()
    for event in node:
        if event["type"] == "INPUT":
            node.send_output("out", event["value"], event["metadata"])
"""


def message(value: Any, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    array = value if isinstance(value, pa.Array) else pa.array(value)
    return {
        "kind": "dora",
        "type": "INPUT",
        "id": "in",
        "value": array,
        "metadata": {"timestamp": AT, **(metadata or {})},
    }


def is_alive(process: int) -> bool:
    """A process that has ended and that nobody has asked about yet counts as ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_for_end(process: int) -> None:
    while is_alive(process):
        time.sleep(0.01)


# Sources


def test_a_source_sends_until_it_ends(start: Start) -> None:
    before = time.time_ns()
    source = start("""
        import pyarrow as pa
        from dora import Node

        node = Node()
        for i in range(1000):
            node.send_output("out", pa.array([i]), {"place": i})
    """)
    received = source.receive_all()
    assert [array.to_pylist() for _, array, _, _ in received] == [[i] for i in range(1000)]
    assert [metadata for *_, metadata in received] == [{"place": i} for i in range(1000)]
    assert {output for output, *_ in received} == {"out"}
    times = [at for _, _, at, _ in received]
    assert times == sorted(times)
    assert before < times[0] < times[-1] < time.time_ns()
    assert source.node.ended == 0
    assert source.node.failure is None


def test_a_source_may_say_when_its_messages_happened(start: Start) -> None:
    source = start("""
        import datetime
        from dora import Node

        at = datetime.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC)
        Node().send_output("out", [1], {"timestamp": at, "other": at})
    """)
    [(_, _, at, metadata)] = source.receive_all()
    assert at == int(AT.timestamp()) * 10**9 + 123456000
    assert metadata == {"other": AT}


def test_receive_returns_nothing_when_nothing_was_sent(start: Start) -> None:
    source = start("import time; time.sleep(600)")
    assert source.node.receive(0.01) == []
    assert source.node.ended is None


def test_a_source_is_told_to_stop(start: Start) -> None:
    source = start("""
        import pyarrow as pa
        from dora import Node

        node = Node()
        i = 0
        while True:
            node.send_output("out", pa.array([i]))
            i += 1
            event = node.try_recv()
            if event is not None and event["type"] == "STOP":
                print(event["id"], node.next())
                break
        node.send_output("out", pa.array([-1]))
    """)
    first = source.node.receive(60)
    assert source.handle(TOLD_TO_STOP) == CONTINUE
    source.finish()
    values = [array[0].as_py() for _, array, _, _ in first] + [one for [one] in source.values]
    assert values == [*range(len(values) - 1), -1]
    assert source.printed() == ["MANUAL None"]
    assert source.node.ended == 0


def test_a_sender_waits_while_too_much_is_unread(start: Start) -> None:
    source = start(
        """
        import pyarrow as pa
        from dora import Node

        node = Node()
        for i in range(40):
            node.send_output("out", pa.nulls(131072, pa.int64()))
            print("sent", i)
        """,
        limit=3_000_000,
    )
    source.wait_for("sent 1")
    time.sleep(1)
    blocked = len(source.printed())
    assert 2 <= blocked <= 8
    assert len(source.receive_all()) == 40
    assert len(source.printed()) == 40


def test_the_lines_of_a_program_without_a_node_are_logged(start: Start) -> None:
    source = start(
        """\
        #!/bin/sh
        echo "one $1"
        echo two >&2
        printf 'no end of line'
        """,
        name="program",
        args=("ärg with spaces",),
    )
    assert source.receive_all() == []
    assert source.node.ended == 0
    assert source.printed() == ["one ärg with spaces", "no end of line"]
    assert source.printed("stderr") == ["two"]


def test_a_program_that_has_no_node_and_no_inputs_is_stopped_at_once(start: Start) -> None:
    source = start("#!/bin/sh\necho up\nsleep 600\n", name="program")
    source.wait_for("up")
    source.handle(TOLD_TO_STOP)
    source.finish(grace=300)
    assert source.node.ended == -signal.SIGTERM


# Events and answers


def test_a_transform_answers_every_event(start: Start) -> None:
    double = start(DOUBLE, inputs=("in",))
    assert double.handle(message([1]), message([2, 3])) == CONTINUE
    assert double.values == [[2], [4, 6]]
    assert double.handle(message([4])) == CONTINUE
    assert double.values == [[2], [4, 6], [8]]
    assert double.handle(CLOSED) == CONTINUE
    double.finish()
    assert double.printed() == ["done"]
    assert double.node.ended == 0


def test_a_sink_sees_what_dora_gives_nodes(start: Start) -> None:
    sink = start(
        """
        from dora import Node

        for event in Node():
            value = event.pop("value", None)
            print(None if value is None else value.to_pylist(), sorted(event.items()))
        """,
        inputs=("in",),
        outputs=(),
    )
    sink.handle(message(["ä"], {"k": 1}), message(pa.nulls(0)), CLOSED)
    sink.finish()
    at = {"timestamp": AT}
    assert sink.printed() == [
        f"['ä'] {[('id', 'in'), ('kind', 'dora'), ('metadata', {**at, 'k': 1}), ('type', 'INPUT')]}",
        f"[] {[('id', 'in'), ('kind', 'dora'), ('metadata', at), ('type', 'INPUT')]}",
        "None [('id', 'in'), ('kind', 'dora'), ('type', 'INPUT_CLOSED')]",
        "None [('id', 'ALL_INPUTS_CLOSED'), ('kind', 'dora'), ('type', 'STOP')]",
    ]


def test_handle_returns_when_the_last_event_is_handled_and_not_before(start: Start) -> None:
    slow = start(
        """
        import time
        from dora import Node

        node = Node()
        for event in node:
            if event["type"] == "INPUT":
                time.sleep(0.02)
                node.send_output("out", event["value"])
                time.sleep(0.02)
                node.send_output("out", event["value"])
        """,
        inputs=("in",),
    )
    slow.handle(*(message([i]) for i in range(10)))
    assert slow.values == [[i] for i in range(10) for _ in range(2)]


def test_an_answer_may_be_larger_than_every_buffer(start: Start) -> None:
    grow = start(
        """
        import pyarrow as pa
        from dora import Node

        node = Node()
        for event in node:
            if event["type"] == "INPUT":
                for _ in range(4):
                    node.send_output("out", pa.nulls(100_000, pa.int64()))
        """,
        inputs=("in",),
        limit=100_000,
    )
    large = message(pa.nulls(100_000, pa.int64()))
    assert grow.handle(*[large] * 10) == CONTINUE
    assert len(grow.sent) == 40


def test_a_message_of_100_mb_goes_through(start: Start) -> None:
    echo = start(ECHO, inputs=("in",))
    large = pa.array(range(13), pa.int64()).take(pa.array([i % 13 for i in range(1000)]))
    large = pa.concat_arrays([large] * 13_000)
    echo.handle(message(large))
    assert echo.sent[0][1].equals(large)


ARRAYS = [
    pa.array([1, 2, None]),
    pa.array([1, 2, 3])[1:],
    pa.array([1, None, 3, None])[1:],
    pa.array([], pa.int64()),
    pa.array([], pa.string()),
    pa.array(["", "ü€😀", None]),
    pa.array([True, None, False])[1:],
    pa.nulls(3),
    pa.array([b"\x00", b""]),
    pa.array([1.5, float("inf")], pa.float16()),
    pa.array([AT], pa.timestamp("us", "UTC")),
    pa.array([[1, 2], [], None], pa.list_(pa.int32())),
    pa.array([{"a": 1, "b": {"c": ["x"]}}, None]),
    pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
    pa.array(["x", "y", "x"]).dictionary_encode(),
    pa.StructArray.from_arrays([pa.array(["x", "y", "x"]).dictionary_encode()], ["d"]),
    pa.array(["long enough to be in a buffer of its own", "short"], pa.string_view()),
    pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
    pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
    pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["b"])]
    ),
    pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2)[1:],
]


def test_arrays_of_every_type_come_back_as_they_went(start: Start) -> None:
    echo = start(ECHO, inputs=("in",))
    echo.handle(*(message(array) for array in ARRAYS + ARRAYS))
    for array, (_, value, _) in zip(ARRAYS + ARRAYS, echo.sent, strict=True):
        value.validate(full=True)
        assert value.type == array.type
        assert value.equals(array)


def test_metadata_and_time_are_passed_through(start: Start) -> None:
    echo = start(ECHO, inputs=("in",))
    metadata = {
        "flag": True, "whole": -(2**63), "real": 0.1, "text": "ü\n", "list": [1, 2], "none": [], "time": AT,
    }  # fmt: skip
    echo.handle(message([1], metadata))
    [(_, _, got)] = echo.sent
    assert got == {**metadata, "timestamp": AT}


def test_a_message_without_a_time_of_its_own_leaves_it_to_the_dataflow(start: Start) -> None:
    double = start(DOUBLE, inputs=("in",))
    double.handle(message([1], {"k": 1}))
    assert double.sent[0][2] is None


def test_what_threads_send_is_passed_on_with_the_next_events(start: Start) -> None:
    node = start(
        """
        import threading
        from dora import Node

        node = Node()

        def work(name):
            for i in range(200):
                node.send_output("out", [f"{name}{i}"])

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for event in node:
            if event["type"] == "INPUT_CLOSED":
                for thread in threads:
                    thread.join()
        """,
        inputs=("in",),
    )
    node.handle(message([1]))
    node.handle(CLOSED)
    texts = [text for [text] in node.values]
    assert len(texts) == 600
    for name in "abc":
        assert [text for text in texts if text[0] == name] == [f"{name}{i}" for i in range(200)]


def test_events_can_be_read_in_every_way_that_dora_has(start: Start) -> None:
    node = start(
        """
        import asyncio
        from dora import Node

        node = Node()

        def show(event):
            print(event["type"], event["value"].to_pylist() if "value" in event else event.get("id"))

        print(node.next(timeout=0.01)["type"], node.try_recv(), node.drain(), node.is_empty())

        async def receive():
            try:
                await asyncio.wait_for(node.recv_async(), 0.01)
            except TimeoutError:
                print("cancelled")
            print((await node.recv_async(timeout=0.01))["type"])
            node.log_info("ready")
            show(await node.recv_async())

        asyncio.run(receive())
        show(node.next())
        while node.is_empty():
            pass
        print(node.is_empty())
        show(node.try_recv())
        while True:
            events = node.drain()
            for event in events:
                show(event)
            if any(event["type"] == "STOP" for event in events):
                break
        print(node.next(), node.next(timeout=1), node.try_recv(), node.drain(), node.is_empty())
        print(asyncio.run(node.recv_async()), next(iter(node), "over"))
        """,
        inputs=("in",),
    )
    node.wait_for("ready")
    node.handle(*(message([i]) for i in range(5)))
    node.handle(message([5]))
    node.handle(CLOSED)
    node.finish()
    assert node.printed() == [
        "ERROR None [] True",
        "cancelled",
        "ERROR",
        *(f"INPUT [{i}]" for i in range(2)),
        "False",
        *(f"INPUT [{i}]" for i in range(2, 6)),
        "INPUT_CLOSED in",
        "STOP ALL_INPUTS_CLOSED",
        "None None None [] True",
        "None over",
    ]


def test_a_node_knows_what_it_is(start: Start) -> None:
    node = start(
        """
        import os, sys
        from dora import Node

        node = Node("worker")
        print(node.node_config())
        print(node.dataflow_descriptor())
        print(node.dataflow_id(), node.is_restart(), node.restart_count())
        print(sys.argv[1:], os.environ["MINE"], os.getcwd())
        """,
        inputs=("in",),
        args=("--x", "two words"),
        env={"MINE": "yes"},
    )
    node.finish()
    assert node.printed() == [
        "{'inputs': {'in': 'before/in'}, 'outputs': ['out']}",
        "{'nodes': [{'id': 'worker', 'inputs': {'in': 'before/in'}}]}",
        "flow False 0",
        f"['--x', 'two words'] yes {Path(node.node._directory).resolve()}",
    ]


def test_what_a_node_logs_has_its_level(start: Start) -> None:
    node = start("""
        import logging
        from dora import Node

        node = Node()
        node.log("info", "one", target="here", fields={"a": "b"})
        node.log_warn("two")
        node.log_error("three")
        logging.getLogger("lib").info("four %d", 4)
        logging.warning("five")
        node.send_output("out", [1], {"odd": {1}})
    """)
    node.receive_all()
    assert node.lines == [
        ("info", "here: one a=b"),
        ("warning", "two"),
        ("error", "three"),
        ("info", "lib: four 4"),
        ("warning", "five"),
        ("warning", "metadata `odd`: set is sent as a string"),
    ]


def test_requests_answers_and_raw_memory_are_sent_as_in_dora(start: Start) -> None:
    node = start("""
        from dora import Node

        node = Node()
        print(node.send_service_request("out", b"ask", {"a": 1}))
        node.send_service_response("out", b"yes", {"request_id": "7"})
        with node.send_output_raw("out", 4, {"b": 2}) as memory:
            memoryview(memory)[:] = b"wxyz"
        sample = node.send_output_raw("out", 2)
        sample.as_memoryview()[:] = b"hi"
        sample.send()
    """)
    received = [(array.type, bytes(array.to_pylist()), more) for _, array, _, more in node.receive_all()]
    [request] = node.printed()
    assert received == [
        (pa.uint8(), b"ask", {"a": 1, "request_id": request}),
        (pa.uint8(), b"yes", {"request_id": "7"}),
        (pa.uint8(), b"wxyz", {"b": 2}),
        (pa.uint8(), b"hi", None),
    ]


def test_a_sample_is_filled_through_views_and_sent_once_when_they_are_released(start: Start) -> None:
    node = start("""
        import numpy as np
        from dora import Node

        node = Node()

        def attempt(call):
            try:
                call()
            except Exception as error:
                print(type(error).__name__, error)

        sample = node.send_output_raw("out", np.int64(3))
        view = sample.as_memoryview()
        view[:] = b"abc"
        attempt(sample.send)
        view.release()
        sample.send()
        for call in (sample.send, sample.as_buffer, sample.as_memoryview, sample.__enter__):
            attempt(call)
        with node.send_output_raw("out", 2) as buffer:
            array = np.frombuffer(buffer, dtype=np.uint8)
            array[:] = 7
            del array
        print(len(buffer))

        def fail():
            with node.send_output_raw("out", 2):
                raise KeyError("not sent")

        attempt(fail)
        attempt(lambda: node.send_output_raw("out", -1))
        attempt(lambda: node.send_output_raw("out", 1.5))
        attempt(lambda: node.send_output_raw("out", 1, 5))
        attempt(lambda: node.send_output_raw("nope", 1).send())
        node.send_output_raw("out", 0).send()
    """)
    sent = [bytes(array.to_pylist()) for _, array, _, _ in node.receive_all()]
    assert sent == [b"abc", b"\x07\x07", b""]
    still_open, *rest, undeclared = node.printed()
    assert still_open.startswith("RuntimeError Cannot send: views of the sample are still open")
    accessed = "RuntimeError Cannot access buffer: the sample has already been sent"
    assert rest == [
        "RuntimeError Sample has already been sent",
        accessed,
        accessed,
        accessed,
        "0",
        "KeyError 'not sent'",
        "OverflowError a sample cannot have -1 bytes",
        "TypeError 'float' object cannot be interpreted as an integer",
        "TypeError metadata must be a dict, got int",
    ]
    assert undeclared.startswith("ValueError node `worker` has no output `nope`; declared: `out`; name it")


# Mistakes


def test_mistakes_in_sending_are_raised_where_they_are_made(start: Start) -> None:
    node = start(
        """
        from dora import Node

        node = Node()
        for call in (
            lambda: node.send_output("resutl", [1]),
            lambda: node.send_output("out", object()),
            lambda: node.send_output("out", [1], [1]),
            lambda: node.send_output("out", [1], {"k": 2**70}),
            lambda: node.merge_external_events(None),
            lambda: node.extension_store("a", "b", b"c"),
            lambda: Node(),
        ):
            try:
                call()
            except Exception as error:
                print(type(error).__name__, error)
        node.send_output("out", [1])
        """,
        outputs=("result", "out"),
    )
    assert len(node.receive_all()) == 1
    undeclared, *rest = node.printed()
    assert undeclared == (
        "ValueError node `worker` has no output `resutl`; declared: `result`, `out`; did you mean `result`?"
    )
    assert [line.split()[0] for line in rest] == [
        "TypeError",
        "TypeError",
        "ValueError",
        "NotImplementedError",
        "NotImplementedError",
        "RuntimeError",
    ]


def test_a_started_process_is_the_node_of_the_document_whatever_it_calls_itself(start: Start) -> None:
    node = start("from dora import Node\nprint(Node('other'))\n")
    node.receive_all()
    assert node.printed() == ["<dora.Node worker>"]
    assert node.node.ended == 0


def test_what_a_process_sends_between_events_is_passed_on_and_its_end_is_seen(start: Start) -> None:
    node = start(
        """
        import sys
        from dora import Node

        node = Node()
        node.send_output("out", [1])
        node.log_info("sent")
        node.next()
        node.send_output("out", [2])
        sys.exit(3)
        """,
        inputs=("in",),
    )
    node.wait_for("sent")
    while not node.values:
        assert node.handle() == CONTINUE
    assert node.values == [[1]]
    with pytest.raises(OperatorError, match="exit code 3"):
        node.handle(message([0]))
    assert node.values == [[1], [2]]


def test_a_raise_shows_its_traceback_after_what_was_sent_before(start: Start) -> None:
    node = start(
        """
        from dora import Node

        node = Node()
        for event in node:
            node.send_output("out", event["value"])
            raise ValueError("böse")
        """,
        inputs=("in",),
    )
    with pytest.raises(OperatorError, match="node `worker` ended with exit code 1") as raised:
        node.handle(message([1]), message([2]))
    assert "Traceback (most recent call last)" in str(raised.value)
    assert str(raised.value).endswith("ValueError: böse")
    assert node.values == [[1]]
    node.finish()  # what has been said is not said again


def test_an_exit_code_is_told(start: Start) -> None:
    node = start("#!/bin/sh\nexit 3\n", name="program", inputs=("in",))
    with pytest.raises(OperatorError, match=r"^node `worker` ended with exit code 3$"):
        node.handle(message([1]))


def test_a_signal_is_told_by_name(start: Start) -> None:
    node = start("import os; from dora import Node; next(Node()); os.kill(os.getpid(), 11)", inputs=("in",))
    with pytest.raises(OperatorError, match="was killed by SIGSEGV"):
        node.handle(message([1]))


def test_a_node_that_ends_well_before_its_inputs_is_over(start: Start) -> None:
    node = start(
        """
        from dora import Node

        node = Node()
        node.send_output("out", next(node)["value"])
        """,
        inputs=("in",),
    )
    assert node.handle(message([1]), message([2])) == STOP
    assert node.values == [[1]]
    assert node.handle(message([3])) == STOP
    node.finish()


def test_after_its_stop_a_node_gets_no_event_and_has_its_grace_whoever_sends_to_it(start: Start) -> None:
    node = start(
        """
        import time
        from dora import Node

        for event in Node():
            print(event["type"], flush=True)
            if event["type"] == "STOP":
                time.sleep(600)
        """,
        inputs=("in",),
    )
    node.handle(message([1]))
    node.handle(TOLD_TO_STOP)
    node.wait_for("STOP")
    assert node.handle(message([2])) == CONTINUE
    node.finish(0.1)
    assert node.printed() == ["INPUT", "STOP"]
    assert node.handle() == CONTINUE  # that it was killed is no failure of its own


def test_what_a_node_sends_without_end_does_not_hold_an_event_that_it_has_handled(start: Start) -> None:
    node = start(
        """
        import threading
        from dora import Node

        node = Node()

        def flood():
            while True:
                node.send_output("out", [1])

        threading.Thread(target=flood, daemon=True).start()
        for event in node:
            print(event["type"], flush=True)
        """,
        inputs=("in",),
    )
    while len(node.values) < 1000:
        assert node.handle(message([1])) == CONTINUE


def test_events_for_a_script_that_never_makes_a_node_are_dropped_when_it_ends(start: Start) -> None:
    node = start("print('no node')", inputs=("in",))
    assert node.handle(message([1])) == STOP
    assert node.printed() == ["no node"]


def test_a_failure_at_the_very_end_is_raised_by_finish(start: Start) -> None:
    node = start("from dora import Node\nfor _ in Node(): pass\nraise SystemExit(5)\n", inputs=("in",))
    node.handle(message([1]), CLOSED)
    with pytest.raises(OperatorError, match="ended with exit code 5 after it was told to stop"):
        node.finish()


@pytest.mark.parametrize(
    ("name", "script", "said"),
    [
        ("script", "no first line\n", "give it a first line such as #!/bin/sh"),
        ("program", "#!/no/such/interpreter\n", "No such file or directory"),
    ],
)
def test_a_program_that_cannot_be_run_says_why(start: Start, name: str, script: str, said: str) -> None:
    node = start(script, name=name)
    node.receive_all()
    assert said in str(node.node.failure)


def test_a_program_that_may_not_be_run_says_why(tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_text("#!/bin/sh\n")
    unit = Unit(node="worker", kind="process", command=("./program",))
    node = ProcessNode(unit, directory=tmp_path, python=sys.executable, descriptor={}, log=lambda *_: None)
    node.start(None)
    while node.ended is None:
        node.receive(60)
    assert "make it executable: chmod +x" in str(node.failure)
    node.close()


def test_a_missing_directory_is_an_error_of_start(tmp_path: Path) -> None:
    unit = Unit(node="worker", kind="process", command=("true",))
    node = ProcessNode(
        unit, directory=tmp_path / "gone", python=sys.executable, descriptor={}, log=lambda *_: None
    )
    with pytest.raises(FileNotFoundError, match="gone"):
        node.start(None)
    node.close()


# Ends and restarts


def test_a_node_that_does_not_end_is_terminated_and_then_killed(start: Start) -> None:
    node = start(
        """
        import signal, time
        from dora import Node

        node = Node()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for event in node:
            pass
        while True:
            time.sleep(1)
        """,
        inputs=("in",),
    )
    node.handle(message([1]))
    node.finish(grace=0.5)
    assert node.node.ended == -signal.SIGKILL
    assert node.printed("warning") == [
        "it has not ended within 0.5 s: SIGTERM",
        "it has not ended within 0.25 s: SIGKILL",
    ]


def test_a_restarted_node_begins_anew_and_knows_it(start: Start) -> None:
    node = start(
        """
        from dora import Node

        node = Node()
        for event in node:
            if event["type"] == "INPUT":
                if event["value"][0].as_py() < 0:
                    raise ValueError
                node.send_output("out", [node.restart_count()])
        """,
        inputs=("in",),
    )
    node.handle(message([1]))
    with pytest.raises(OperatorError):
        node.handle(message([-1]))
    node.node.restart()
    node.handle(message([1]))
    node.finish()
    assert node.values == [[0], [1]]
    assert node.node.ended == 0


def test_close_from_another_thread_ends_a_node_that_never_answers(start: Start) -> None:
    node = start("import time; print('up'); time.sleep(600)", inputs=("in",))
    node.wait_for("up")
    closer = threading.Timer(0.1, node.node.close)
    closer.start()
    with pytest.raises(OperatorError, match="was killed by SIGTERM"):
        node.handle(message([1]))
    closer.join()


def test_close_frees_a_sender_that_waits(start: Start) -> None:
    node = start(
        """
        from dora import Node

        node = Node()
        print("up")
        while True:
            node.send_output("out", bytes(100_000))
        """,
        limit=1000,
    )
    node.wait_for("up")
    node.node.close()
    node.receive_all()
    assert node.node.ended == -signal.SIGTERM


def test_close_may_come_twice_and_before_start(start: Start, tmp_path: Path) -> None:
    node = start("")
    node.node.close()
    node.node.close()
    unit = Unit(node="worker", kind="process", command=("true",))
    ProcessNode(unit, directory=tmp_path, python=sys.executable, descriptor={}, log=lambda *_: None).close()


def test_what_a_node_has_started_ends_with_it(start: Start) -> None:
    node = start("#!/bin/sh\nsleep 600 &\necho $!\n", name="program")
    node.receive_all()
    [line] = node.printed()
    wait_for_end(int(line))


def test_ctrl_c_in_the_terminal_is_not_for_the_nodes(start: Start) -> None:
    node = start("import os; print(os.getsid(0), os.getpgid(0), os.getpid())")
    node.receive_all()
    session, group, process = map(int, node.printed()[0].split())
    assert session == group == process
    assert session != os.getsid(0)


PARENT = """
    import sys, time
    from pathlib import Path
    from headrace.dataflow.document.model import Input, Output, Unit
    from headrace.dataflow.runtime.process import ProcessNode

    command, directory = tuple(sys.argv[1].split()), Path(sys.argv[2])
    inputs = (Input("in", Output("a", "b")),)
    unit = Unit(node="worker", kind="process", command=command, inputs=inputs, outputs=("out",))
    log = lambda stream, line: print(line, flush=True)
    node = ProcessNode(unit, directory=directory, python=sys.executable, descriptor={}, log=log)
    node.start(None)
    node.handle([{"type": "INPUT_CLOSED", "id": "in"}], log)
    time.sleep(600)
"""


BUSY = """
    import os, time
    print(os.getpid())
    while True:
        time.sleep(1)
"""
READING = """
    import os
    from dora import Node

    node = Node()
    print(os.getpid())
    for _ in node:
        pass
"""


@pytest.mark.parametrize(
    ("name", "script"), [("busy.py", BUSY), ("reading.py", READING), ("behind_a_shell", READING)]
)
def test_a_parent_that_is_killed_leaves_no_process_behind(tmp_path: Path, name: str, script: str) -> None:
    file = tmp_path / name
    if name == "behind_a_shell":
        script = f"#!/bin/sh\n{sys.executable} -c '{textwrap.dedent(script)}'\necho not reached\n"
    file.write_text(textwrap.dedent(script))
    file.chmod(0o755)
    command = f"python {name}" if name.endswith(".py") else f"./{name}"
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), command, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    process = int(parent.stdout.readline())
    assert is_alive(process)
    parent.kill()
    parent.wait()
    wait_for_end(process)
    parent.stdout.close()


def test_the_thread_that_starts_a_node_may_end(start: Start) -> None:
    nodes: list[Any] = []
    starter = threading.Thread(target=lambda: nodes.append(start(DOUBLE, inputs=("in",))))
    starter.start()
    starter.join()
    [node] = nodes
    assert node.handle(message([1])) == CONTINUE
    assert node.values == [[2]]
