"""Messages travel between runtimes as record batches, and come out as they went in."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.dataflow.document.model import Input, Timer, Unit
from headrace.dataflow.runtime.hosts import CONTINUE
from headrace.dataflow.runtime.messages import Closed, Message, Unreadable
from headrace.dataflow.runtime.packing import message_of, pack, rows_of, unpack
from headrace.dataflow.runtime.printed import Capture
from headrace.dataflow.runtime.python_host import PythonHost
from headrace.dataflow.runtime.saved import load_state
from headrace.dataflow.runtime.scheduler import Memory, Scheduler

VALUES = {
    "numbers": pa.array([1, 2, 3]),
    "nothing": pa.array([], pa.int64()),
    "nulls": pa.nulls(3),
    "texts": pa.array(["a", None, "Grüße"]),
    "bits": pa.array([True, None]),
    "structs": pa.array([{"a": 1, "b": [1, 2]}, None]),
    "dictionary": pa.array(["x", "y", "x"]).dictionary_encode(),
    "a slice": pa.array(range(100)).slice(40, 3),
    "maps": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    "large": pa.array(np.arange(1 << 17)),
    "times": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_type_comes_out_as_it_went_in(name: str) -> None:
    metadata = {"key": "k", "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "list": [1, 2]}
    messages: list[tuple[str, Message | Closed]] = [
        ("a|out", Message(VALUES[name], 7, metadata)),
        ("a|out", Closed(8)),
    ]
    found = [one for batch in pack(messages) for one in unpack(batch)]
    assert [output for output, _ in found] == ["a|out", "a|out"]
    message = found[0][1]
    assert isinstance(message, Message)
    assert message.value.equals(VALUES[name])
    assert (message.time, message.metadata) == (7, metadata)
    assert found[1][1] == Closed(8)


def test_small_messages_of_one_type_share_a_batch_and_order_is_kept() -> None:
    messages = [("o", Message(pa.array([n]), n)) for n in range(5000)]
    messages[2500] = ("o", Message(pa.array(["text"]), 2500))
    batches = list(pack(messages))
    assert len(batches) == 3
    assert [one.time for batch in batches for _, one in unpack(batch)] == list(range(5000))


def test_rows_become_a_message_and_a_message_rows() -> None:
    batch = rows_of(Message(pa.array([{"a": 1}, {"a": 2}]), 5))
    assert batch.schema.names == ["a", "_timestamp"]
    assert message_of(batch).time == 5
    assert rows_of(Message(pa.array([1, 2]), 5)).schema.names == ["value", "_timestamp"]


def test_a_message_that_cannot_be_read_is_an_error_event_and_the_next_one_is_an_input() -> None:
    messages = [("t", Message(pa.array([n]), n, {"n": n})) for n in range(3)]
    batch = next(iter(pack(messages)))
    broken = batch.set_column(
        batch.schema.get_field_index("metadata"), "metadata", pa.array(['{"n": 0}', "{not json", '{"n": 2}'])
    )
    found = [one for _, one in unpack(broken)]
    assert [type(one) for one in found] == [Message, Unreadable, Message]

    source = Timer(Fraction(1), "t")
    unit = Unit("u", "python", operator="op", inputs=(Input("in", source),), file=Path("u.py"))
    printed: list[str] = []
    text = (
        "from types import SimpleNamespace\n"
        "class Operator:\n"
        "    def on_event(self, event, send):\n"
        "        print(event['type'], event['id'], event.get('error', '')[:15])\n"
        f"        return SimpleNamespace(value={CONTINUE})\n"
    )
    capture = Capture()
    host = PythonHost(unit, text, descriptor={}, log=lambda _, line: printed.append(line), capture=capture)
    scheduler = Scheduler([unit], {"u": host}, {"u": lambda _, line: printed.append(line)})
    scheduler.start({}, Memory())
    with capture.capturing():
        for one in found:
            scheduler.feed(source, one)
        scheduler.settle()
    assert printed == ["INPUT in ", "ERROR in JSONDecodeError", "INPUT in "]


SAVED_BEFORE_THE_MODULES_MOVED = (
    b"\x80\x02cheadrace.dataflow.scheduler\nMemory\nq\x00)\x81q\x01}q\x02(X\x05\x00\x00\x00endedq\x03]q\x04X"
    b"\x01\x00\x00\x00aq\x05aX\x06\x00\x00\x00closedq\x06}q\x07X\x03\x00\x00\x00b:xq\x08K\x01sX\x07\x00\x00\x00dropped"
    b"q\t}q\nh\x08K\x02sX\x05\x00\x00\x00heardq\x0b}q\x0cX\x08\x00\x00\x00restartsq\r}q\x0eX\x01\x00\x00\x00bq\x0f]q"
    b"\x10G?\xf8\x00\x00\x00\x00\x00\x00asub]q\x11h\x0fX\x01\x00\x00\x00xq\x12cheadrace.dataflow.messages\nClosed\nq"
    b"\x13K\x07\x85q\x14\x81q\x15\x87q\x16aK\x03\x87q\x17."
)


def test_what_an_earlier_version_has_saved_can_be_read() -> None:
    memory, waiting, generation = load_state(SAVED_BEFORE_THE_MODULES_MOVED)
    assert memory == Memory(ended=["a"], closed={"b:x": 1}, dropped={"b:x": 2}, restarts={"b": [1.5]})
    assert waiting == [("b", "x", Closed(7))]
    assert generation == 3
