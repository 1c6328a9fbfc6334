"""Envelopes: sealed without loss, opened without a copy."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from headrace.engine.envelope import EnvelopeKind, EnvelopeWriter, seal, seal_bytes, unseal
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
