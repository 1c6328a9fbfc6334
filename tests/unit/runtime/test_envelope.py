"""Envelopes: sealed without loss, opened without a copy."""

from __future__ import annotations

import pyarrow as pa

from headrace.plan import Edge
from headrace.runtime.envelope import EnvelopeWriter, Kind, read_envelopes, seal, unseal
from headrace.runtime.stages import Crossing


def crossing(parallelism: int, keys: tuple[str, ...] = ("k",)) -> Crossing:
    edge = Edge("a", "b", kind="shuffle", keys=keys)
    return Crossing(index=0, edge=edge, chain=1, stage=1, parallelism=parallelism)


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"k": list(range(rows)), "s": [f"row {i}" for i in range(rows)]})


def test_a_batch_between_messages_of_any_length_is_opened_without_a_copy() -> None:
    writer = EnvelopeWriter(0)
    for length in range(1, 12):
        writer.send(crossing(1), batch(length))
        writer.signal(crossing(1), Kind.WATERMARK, "x" * length)
    (sealed,) = writer.drain(everything=True)
    start, size = sealed.column(5).buffers()[2].address, sealed.column(5).buffers()[2].size
    opened = [part for one in read_envelopes(sealed) if one.kind is Kind.DATA for part in unseal(one.payload)]
    assert [part.num_rows for part in opened] == list(range(1, 12))
    for part in opened:
        address = part.column("k").buffers()[1].address
        assert start <= address < start + size
        assert address % 8 == 0


def test_rows_go_to_the_subtask_of_their_key_and_none_is_lost() -> None:
    writer = EnvelopeWriter(3)
    writer.send(crossing(4), batch(1000))
    found: dict[int, int] = {}
    for sealed in writer.drain(everything=True):
        for one in read_envelopes(sealed):
            for part in unseal(one.payload):
                for key in part.column("k").to_pylist():
                    assert key not in found
                    found[key] = one.to
    assert sorted(found) == list(range(1000))
    assert set(found.values()) == {0, 1, 2, 3}


def test_a_misaligned_payload_is_still_read_right() -> None:
    payload = pa.py_buffer(b"x" + seal(batch(5))).slice(1)
    (part,) = unseal(payload)
    assert part.column("k").buffers()[1].address % 8 == 0
    assert part.to_pydict() == batch(5).to_pydict()
