"""Ranges of lines: where they end, and which line they begin with."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.filesystem import lines

TARGETS = st.lists(st.integers(0, 160), max_size=5).map(sorted)
PARTS = st.lists(st.sampled_from([b"\n", b"x", b"long", b"\n\n"]), max_size=40).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(PARTS, st.integers(1, 9), TARGETS, st.integers(1, 30), st.integers(0, 10), st.integers(1, 9))
def test_shares_begin_with_the_right_line_whatever_is_known_of_it(
    data: bytes, counted: int, wanted: list[int], rows: int, skipped: int, near: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lines, "BLOCK", counted)
        patched.setattr(lines, "_NEAR", near)
        begin = data.find(b"\n", skipped) + 1
        stream = io.BytesIO(data)
        stream.seek(begin)
        found = lines.scan_rows(stream, begin, len(data), rows=rows)
        assert found.lines == found.rows == min(rows, len(data[begin:].splitlines()))
        assert all(mark.line == data[begin : mark.at].count(b"\n") for mark in found.marks)
        line = 1 + data[:begin].count(b"\n")
        targets = [target for target in wanted if begin < target < found.end]
        for marks in (found.marks, ()):
            cut = list(lines.share_rows(stream, begin, found.end, line=line, targets=targets, marks=marks))
            assert len(cut) <= len(targets) + 1
            assert all(share.begin < share.end for share in cut)
            assert b"".join(data[share.begin : share.end] for share in cut) == data[begin : found.end]
            assert [share.line for share in cut] == [1 + data[: one.begin].count(b"\n") for one in cut]


class Counted(io.BytesIO):
    """Remembers how much of it was read, and how often something was."""

    taken = asked = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        self.asked += 1
        return found


def test_lines_that_were_counted_are_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 1000)
    monkeypatch.setattr(lines, "_NEAR", 20)
    stream = Counted(b"123456789\n" * 1000)
    found = lines.scan_rows(stream, 0, 10_000, rows=1000)
    assert stream.taken == 10_000
    assert stream.asked == 10  # each may be a request to an object store
    stream.taken = stream.asked = 0
    shares = list(
        lines.share_rows(stream, 0, 10_000, line=1, targets=[2_500, 5_000, 7_500], marks=found.marks)
    )
    assert [share.line for share in shares] == [1, 251, 501, 751]
    assert stream.taken < 2_000
    assert stream.asked <= 6
