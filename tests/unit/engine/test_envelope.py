"""Envelopes: sealed without loss, opened without a copy."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from headrace.engine.envelope import (
    BY_ORDER,
    Envelope,
    EnvelopeKind,
    EnvelopeWriter,
    batches_of,
    seal,
    seal_bytes,
    unseal,
)
from headrace.engine.stages import Crossing
from headrace.model.plan import Edge


def crossing(parallelism: int, keys: tuple[str, ...] = ("k",)) -> Crossing:
    edge = Edge("a", "b", kind="shuffle", keys=keys)
    return Crossing(index=0, edge=edge, chain=1, stage=1, parallelism=parallelism)


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"k": list(range(rows)), "s": [f"row {i}" for i in range(rows)]})


def test_an_envelope_that_was_pickled_is_opened_without_a_copy() -> None:
    writer = EnvelopeWriter(0)
    for length in range(1, 12):
        writer.send(crossing(1), batch(length))
        writer.signal(crossing(1), EnvelopeKind.WATERMARK, "x" * length)
    sent = list(writer.drain(everything=True))
    arrived = pickle.loads(pickle.dumps(sent, protocol=5))
    assert [one[:5] for one in arrived] == [one[:5] for one in sent]
    assert [one.message() for one in arrived if one.kind is EnvelopeKind.WATERMARK] == [
        "x" * n for n in range(1, 12)
    ]
    for one, rows in zip(
        [one for one in arrived if one.kind is EnvelopeKind.DATA], range(1, 12), strict=True
    ):
        (part,) = unseal(one.payload)
        assert part.to_pydict() == batch(rows).to_pydict()
        payload = pa.py_buffer(one.payload)
        address = part.column("k").buffers()[1].address
        assert payload.address <= address < payload.address + payload.size
        assert address % 8 == 0


def test_rows_go_to_the_subtask_of_their_key_and_none_is_lost() -> None:
    writer = EnvelopeWriter(3)
    writer.send(crossing(4), batch(1000))
    found: dict[int, int] = {}
    for one in writer.drain(everything=True):
        for part in unseal(one.payload):
            for key in part.column("k").to_pylist():
                assert key not in found
                found[key] = one.to
    assert sorted(found) == list(range(1000))
    assert set(found.values()) == {0, 1, 2, 3}


@pytest.mark.parametrize("parallelism", [1, 2, 16, 1000])
def test_what_a_task_holds_does_not_grow_with_the_number_of_subtasks(
    parallelism: int,
) -> None:
    held = min(10 * parallelism, 1000)  # envelopes, by PySpark
    assert held * seal_bytes(parallelism) <= 80 << 20


def test_many_rows_leave_in_several_envelopes() -> None:
    writer = EnvelopeWriter(0)
    rows = seal_bytes(100) // batch(1000).nbytes * 1000 + 1000
    for _ in range(3):
        writer.send(crossing(100, ()), batch(rows))
    assert len(list(writer.drain())) == 3


def test_a_misaligned_payload_is_still_read_right() -> None:
    payload = pa.py_buffer(b"x" + bytes(seal(batch(5)))).slice(1)
    (part,) = unseal(payload)
    assert part.column("k").buffers()[1].address % 8 == 0
    assert part.to_pydict() == batch(5).to_pydict()


def test_small_batches_of_an_edge_become_one_in_the_order_in_which_they_were_sent() -> None:
    sent: list[Envelope] = []
    for sender in range(50):
        writer = EnvelopeWriter(sender)
        writer.send(crossing(1), pa.record_batch({"k": [sender, sender + 1000]}))
        sent += writer.drain(everything=True)
    sent.reverse()
    ((edge, joined),) = batches_of(sorted(sent, key=BY_ORDER))
    assert edge == 0
    assert joined.column("k").to_pylist() == [k for sender in range(50) for k in (sender, sender + 1000)]


def test_batches_of_other_columns_other_edges_and_many_rows_stay_apart() -> None:
    writer = EnvelopeWriter(0)
    other = Crossing(
        index=1, edge=Edge("a", "b", kind="shuffle", keys=("k",)), chain=1, stage=1, parallelism=1
    )
    writer.send(crossing(1), batch(3))
    writer.send(crossing(1), pa.record_batch({"k": [1]}))  # sealed apart: it has other columns
    writer.send(crossing(1), batch(9000))
    writer.send(other, batch(2))
    found = [
        (edge, part.num_rows)
        for edge, part in batches_of(sorted(writer.drain(everything=True), key=BY_ORDER))
    ]
    assert found == [(0, 3), (0, 1), (0, 9000), (1, 2)]


def test_a_signal_reaches_every_subtask_behind_the_data_sent_before_it() -> None:
    writer = EnvelopeWriter(7)
    writer.send(crossing(3), batch(100))
    writer.signal(crossing(3), EnvelopeKind.WATERMARK, 5)
    writer.signal(crossing(3), EnvelopeKind.WATERMARK, 6)
    arrived = sorted(writer.drain(everything=True), key=BY_ORDER)
    for subtask in range(3):
        kinds = [one.kind for one in arrived if one.to == subtask]
        assert kinds == [EnvelopeKind.DATA, EnvelopeKind.WATERMARK, EnvelopeKind.WATERMARK]
        assert [one.signal() for one in arrived if one.to == subtask and one.kind] == [5, 6]
