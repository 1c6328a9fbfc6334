"""Server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from starlette.responses import StreamingResponse


class EventAnswer(StreamingResponse):
    """An answer of server-sent events, which no proxy should keep back."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes] | Iterator[bytes], status_code: int = 200) -> None:
        super().__init__(events, status_code, headers={"x-accel-buffering": "no"})
