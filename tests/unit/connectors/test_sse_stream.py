"""Events are found in the bytes of a stream, in whatever parts they come."""

from __future__ import annotations

import itertools

import pytest

from headrace.base.errors import RefusedError
from headrace.connectors.http.sse import Event, EventStream

CASES: dict[str, tuple[bytes, list[Event]]] = {
    "data alone": (b"data: a\n\n", [Event("message", b"a", "")]),
    "several lines": (b"data: a\ndata: b\ndata:\n\n", [Event("message", b"a\nb\n", "")]),
    "no space, two spaces": (
        b"data:a\n\ndata:  b\n\n",
        [Event("message", b"a", ""), Event("message", b" b", "")],
    ),
    "a field without a colon": (b"data\n\n", [Event("message", b"", "")]),
    "an event without data": (b"event: x\nid: 1\n\ndata: a\n\n", [Event("message", b"a", "1")]),
    "an id stays": (
        b"id: 1\ndata: a\n\ndata: b\n\nid: 2\ndata: c\n\nid\ndata: d\n\n",
        [
            Event("message", b"a", "1"),
            Event("message", b"b", "1"),
            Event("message", b"c", "2"),
            Event("message", b"d", ""),
        ],
    ),
    "an id with a null is none": (b"id: 1\nid: a\0b\ndata: a\n\n", [Event("message", b"a", "1")]),
    "comments and unknown fields": (b": hi\ndata: a\nwhat: b\n: \n\n", [Event("message", b"a", "")]),
    "all ends of lines": (
        b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\r\r\ndata: e\n\n",
        [Event("message", b"a\nb\nc", ""), Event("message", b"d", ""), Event("message", b"e", "")],
    ),
    "a mark at the beginning": (b"\xef\xbb\xbfevent: \xc3\xbc\ndata: \xff\n\n", [Event("ü", b"\xff", "")]),
    "what is not ended is no event": (b"data: a\n\ndata: b\n", [Event("message", b"a", "")]),
    "nothing": (b"\n\n\r\n", []),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_events_are_the_same_in_parts_of_any_size(name: str, size: int) -> None:
    body, events = CASES[name]
    stream = EventStream(1000)
    found = [
        event for start in range(0, len(body), size) for event in stream.feed(body[start : start + size])
    ]
    assert found == events


def test_the_pause_that_the_server_wants_is_known() -> None:
    stream = EventStream(1000)
    assert list(stream.feed(b"retry: 2500\nretry: soon\nretry: -1\n\n")) == []
    assert stream.retry == 2.5


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b"data: x\n" * 200, b": " + b"x" * 200])
def test_an_event_without_end_is_refused(body: bytes) -> None:
    stream = EventStream(100)
    parts = [body[start : start + 7] for start in range(0, len(body), 7)]
    with pytest.raises(RefusedError, match="more than 100 bytes"):
        list(itertools.chain.from_iterable(map(stream.feed, parts)))
