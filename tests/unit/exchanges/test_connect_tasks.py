"""Envelopes over Spark Connect: rows of Arrow batches and back, and the values that route them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.envelope import Envelope, EnvelopeKind
from headrace.exchanges.spark.connect_tasks import SCHEMA, from_rows, to_rows
from headrace.exchanges.spark.routing import hash_int, values_by_hash


def envelopes(*payloads: bytes | pa.Buffer) -> list[Envelope]:
    return [
        Envelope(to, to % 2, 7, seq, EnvelopeKind(seq % 5), payload)
        for seq, payload in enumerate(payloads)
        for to in range(3)
    ]


@pytest.mark.parametrize(
    "payloads",
    [
        (),
        (b"",),
        (b"one",),
        (b"a", pa.py_buffer(b"bc"), b""),
        (b"x" * 1_500_000, b"y"),
        (pa.py_buffer(b"z" * 3_000_000),),
    ],
)
def test_envelopes_arrive_as_they_left(payloads: tuple[bytes | pa.Buffer, ...]) -> None:
    sent = envelopes(*payloads)
    batches = list(to_rows(iter(sent), (0, 1)))
    assert all(batch.schema == SCHEMA for batch in batches)
    arrived = list(from_rows(batches))
    assert [e._replace(payload=bytes(e.payload)) for e in arrived] == [
        e._replace(payload=bytes(e.payload)) for e in sent
    ]


def test_large_envelopes_leave_one_by_one_and_small_ones_together() -> None:
    assert len(list(to_rows(envelopes(b"x" * 2_000_000), (0,)))) == 3
    assert len(list(to_rows(envelopes(b"a", b"b", b"c"), (0,)))) == 1


def test_a_row_is_routed_to_the_partition_of_its_envelope() -> None:
    targets = values_by_hash(2)
    (batch,) = to_rows(envelopes(b"a"), targets)
    assert batch["target"].to_pylist() == [targets[0], targets[1], targets[0]]


@pytest.mark.parametrize("partitions", [1, 2, 3, 16, 128, 512])
def test_every_partition_has_a_value_that_hashes_into_it(partitions: int) -> None:
    values = values_by_hash(partitions)
    assert [hash_int(value) % partitions for value in values] == list(range(partitions))
