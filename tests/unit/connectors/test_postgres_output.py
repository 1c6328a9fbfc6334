"""Messages of logical replication, made by hand, and the rows that are read from them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.postgres import pgoutput as postgres_output
from headrace.connectors.postgres.pgoutput import MissingRowError, ReplicationMessages
from headrace.connectors.postgres.slot import parse_lsn, short_name, show_lsn

Row = tuple[str | None, ...]
OID, OTHER = 16_384, 70_000
YEAR_2000 = 946_684_800 * 10**9
UNCHANGED = object()


def begin(end: int, time: int = 0) -> bytes:
    return b"B" + struct.pack(">qqi", end - 8, time, 7)


def commit(end: int, time: int = 0) -> bytes:
    return b"C" + struct.pack(">bqqq", 0, end - 8, end, time)


def relation(*columns: str, oid: int = OID, schema: str = "public") -> bytes:
    described = b"".join(b"\x01" + name.encode() + b"\0" + struct.pack(">ii", 25, -1) for name in columns)
    return (
        b"R"
        + struct.pack(">i", oid)
        + f"{schema}\0t\0f".encode()
        + struct.pack(">h", len(columns))
        + described
    )


def row(values: Any) -> bytes:
    made = struct.pack(">h", len(values))
    for value in values:
        if value is None:
            made += b"n"
        elif value is UNCHANGED:
            made += b"u"
        else:
            made += b"t" + struct.pack(">i", len(value.encode())) + value.encode()
    return made


def insert(new: Any, oid: int = OID) -> bytes:
    return b"I" + struct.pack(">i", oid) + b"N" + row(new)


def update(old: Any, new: Any, oid: int = OID) -> bytes:
    return b"U" + struct.pack(">i", oid) + b"O" + row(old) + b"N" + row(new)


def delete(old: Any, oid: int = OID, marker: bytes = b"O") -> bytes:
    return b"D" + struct.pack(">i", oid) + marker + row(old)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f">ib{len(oids)}i", len(oids), 0, *oids)


def blocks(*messages: bytes) -> list[bytes]:
    """The messages as COPY gives them."""
    made = [struct.pack(">hi", 1, len(one)) + one for one in messages]
    if not made:
        return [b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"]
    made[0] = b"PGCOPY\n\xff\r\n\0" + bytes(8) + made[0]
    return [*made, b"\xff\xff"]


def read(*messages: bytes, start: int = 0, end: int = 10**6, **options: Any) -> list[tuple[Any, ...]]:
    """Rows as (taken back, end of the transaction, values by column)."""
    changes = ReplicationMessages(blocks(*messages), oid=OID, start=start, end=end)
    found = []
    for part in changes.rows(**options):
        values = zip(*(column.to_pylist() for column in part.columns), strict=True)
        for flag, place, one in zip(part.retracts.tolist(), part.positions.tolist(), values, strict=True):
            found.append((flag, place, dict(zip(part.relation.columns, one, strict=True))))
    return found


values = st.tuples(st.none() | st.text(max_size=5), st.none() | st.text(max_size=3))
change = st.one_of(
    st.tuples(st.just("I"), values), st.tuples(st.just("D"), values), st.tuples(st.just("U"), values, values)
)


@settings(deadline=None)
@given(
    st.lists(st.lists(change, max_size=6), max_size=6),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(1, 4),
)
def test_rows_are_those_of_the_transactions_in_the_range_in_their_order(
    transactions: list[list[Any]], first: int, last: int, chunk: int
) -> None:
    messages, expected = [], []
    for number, changes in enumerate(transactions):
        end = (number + 1) * 100
        messages.append(begin(end))
        if number % 3 == 0:
            messages += [relation("a", "b"), relation("x", oid=OTHER)]
        for kind, *rows in changes:
            make: dict[str, Any] = {"I": insert, "D": delete, "U": update}
            messages.append(make[kind](*rows))
            messages.append(insert(["z"], OTHER))
            wanted = {"I": [False], "D": [True], "U": [True, False]}[kind]
            if first * 100 < end <= last * 100:
                expected += [
                    (flag, end, dict(zip("ab", one, strict=True)))
                    for flag, one in zip(wanted, rows, strict=True)
                ]
        messages.append(commit(end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_output, "CHUNK_ROWS", chunk)
        assert read(*messages, start=first * 100, end=last * 100) == expected


def test_the_columns_are_those_that_the_table_had_at_the_time() -> None:
    found = read(
        begin(10), relation("a", schema="sales"), insert(["1"]), commit(10),
        begin(20), relation("a", "b"), insert(["2", "x"]), commit(20),
        begin(30), relation("b"), insert(["y"]), commit(30),
    )  # fmt: skip
    assert [one for _, _, one in found] == [{"a": "1"}, {"a": "2", "b": "x"}, {"b": "y"}]
    (rows,) = ReplicationMessages(
        blocks(begin(10), relation("a", schema="sales"), insert(["1"]), commit(10)), oid=OID, start=0, end=99
    ).rows()
    assert rows.relation.name == "sales.t"


def test_a_table_that_is_described_before_the_range_is_known_in_it() -> None:
    messages = [begin(10), relation("a"), insert(["1"]), commit(10), begin(20), insert(["2"]), commit(20)]
    assert read(*messages, start=10) == [(False, 20, {"a": "2"})]


def test_rows_have_the_time_of_their_transaction() -> None:
    one = ReplicationMessages(
        blocks(begin(10), relation("a"), insert(["1"]), commit(10, 5)), oid=OID, start=0, end=99
    )
    (rows,) = one.rows()
    assert rows.times.tolist() == [YEAR_2000 + 5000]


def test_long_values_that_an_update_did_not_send_are_those_of_the_old_row() -> None:
    messages = [begin(9), relation("a", "b"), update(["1", "long"], ["2", UNCHANGED])]
    messages += [update([None, None], [None, UNCHANGED]), commit(9)]
    assert [one for _, _, one in read(*messages)] == [
        {"a": "1", "b": "long"},
        {"a": "2", "b": "long"},
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]


def test_an_old_row_that_is_not_whole_is_refused_unless_only_insertions_are_read() -> None:
    messages = [begin(10), relation("a"), insert(["1"]), commit(10)]
    messages += [begin(20), delete(["1"], marker=b"K"), insert(["2"]), commit(20)]
    with pytest.raises(MissingRowError) as caught:
        read(*messages)
    assert caught.value.position == 20
    assert [one for _, _, one in read(*messages, inserts_only=True)] == [{"a": "1"}, {"a": "2"}]


def test_truncations_of_the_table_are_found_where_they_are() -> None:
    messages = [begin(10), truncate(OTHER, OID), commit(10), begin(20), truncate(OTHER), commit(20)]
    messages += [begin(30), truncate(OID), truncate(OID), commit(30)]
    assert ReplicationMessages(blocks(*messages), oid=OID, start=0, end=99).truncates() == [10, 30, 30]
    assert ReplicationMessages(blocks(*messages), oid=OID, start=10, end=20).truncates() == []


def test_nothing_is_nothing() -> None:
    assert read() == []
    assert read(begin(10), commit(10)) == []
    assert ReplicationMessages(blocks(), oid=OID, start=0, end=9).truncates() == []


def test_positions_and_names_are_written_as_the_server_reads_them() -> None:
    for position in (0, 1, 2**32, 2**63 - 1):
        assert parse_lsn(show_lsn(position)) == position
    assert short_name("headrace_Änd erung-1") == "headrace__nd_erung_1"
    long = [short_name("headrace_" + "x" * 80 + end) for end in ("a", "b")]
    assert len(set(long)) == 2
    assert {len(one) for one in long} == {63}
