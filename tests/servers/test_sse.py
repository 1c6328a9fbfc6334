"""The sse source against real event streams."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import BadLineError, ExternalError
from headrace.connectors import received
from headrace.connectors.http import sse
from headrace.connectors.http.sse import SseSource
from headrace.model.operator import Limit
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.http import (
    Answer,
    HttpServer,
    Patience,
    Request,
    found,
    query,
    run_http,
    run_until,
    table,
    wait_for,
)

STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


class Numbers:
    """A stream of numbered events that begins after Last-Event-ID, and remembers everything."""

    def __init__(self, total: int, *, ids: bool = True, cut: int = 10**9, ends: bool = False) -> None:
        self.total, self.ids, self.cut, self.ends = total, ids, cut, ends
        self.server: HttpServer | None = None

    def __call__(self, request: Request) -> Answer:
        last = int(request.headers.get("Last-Event-ID") or -1)
        if self.ends and last == self.total - 1:
            return Answer(204)
        return Answer(headers=STREAM, parts=self._events(last + 1))

    def _events(self, first: int) -> Iterator[bytes]:
        yield b"retry: 5\n\n"
        for n in range(first, min(self.total, first + self.cut)):
            mark = f"id: {n}\n" if self.ids else ""
            yield f'{mark}data: {{"n": {n}}}\n\n'.encode()
        if self.cut < 10**9:
            return
        while self.server is not None and not self.server.stopping.wait(0.02):
            yield b": still here\n"


@pytest.fixture
def numbers() -> Iterator[tuple[Numbers, HttpServer]]:
    stream = Numbers(1000)
    with run_http(stream) as server:
        stream.server = server
        yield stream, server


def reading(url: str, columns: str = "n BIGINT", select: str = "n", **more: Any) -> Any:
    return query(table("sse", columns, endpoint=url, **more) + f"SELECT {select} FROM numbers")


# ---------------------------------------------------------------------------------------- guarantees


def test_a_resumed_run_asks_for_what_follows_the_last_event_that_it_has(
    tmp_path: Path, numbers: tuple[Numbers, HttpServer]
) -> None:
    _, server = numbers
    lives = [run_until(reading(server.url), tmp_path, count, epoch_rows=50) for count in (100, 100, 0)]
    seen = sum(life.rows_in for life in lives)
    lives.append(run_until(reading(server.url), tmp_path, 1000 - seen))
    assert found(*lives) == list(range(1000))


@pytest.mark.parametrize(
    "step", ["begin", "tasks_done", "operators_written", "metadata_written", "committed"]
)
def test_a_crash_at_any_step_neither_loses_nor_repeats_an_event(
    tmp_path: Path, numbers: tuple[Numbers, HttpServer], step: str
) -> None:
    out = tmp_path / "out.json"

    def build() -> Any:
        return query(
            table("sse", "n BIGINT", endpoint=numbers[1].url)
            + table("single_file", "n BIGINT", "sink", "copied", path=out)
            + "INSERT INTO copied SELECT n FROM numbers;"
        )

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with pytest.raises(CrashError):
        run_until(build(), tmp_path / "state", 10**9, on_step=crash, epoch_rows=50)
    run_in_process(
        build(),
        tmp_path / "state",
        idle_epochs=10**9,
        stop=lambda: out.exists() and out.read_text().count("\n") >= 1000,
    )
    assert [json.loads(line)["n"] for line in out.read_text().splitlines()] == list(range(1000))


def test_a_connection_that_is_cut_and_a_server_that_restarts_cost_no_events(tmp_path: Path) -> None:
    stream = Numbers(100, cut=10)
    with run_http(stream) as server:
        stream.server = server

        def restart(step: str, epoch: int) -> None:
            if step == "begin" and epoch == 3:
                server.stop()
                server.start()

        assert found(run_until(reading(server.url), tmp_path, 100, on_step=restart)) == list(range(100))


def test_a_server_that_says_that_nothing_follows_ends_the_run(tmp_path: Path) -> None:
    with run_http(Numbers(30, cut=20, ends=True)) as server:
        result = run_in_process(reading(server.url), tmp_path, idle_epochs=10**9)
    assert result.reason == "finished"
    assert found(result) == list(range(30))


def test_without_ids_a_stream_goes_on_with_what_is_new(tmp_path: Path) -> None:
    stream = Numbers(20, ids=False)
    with run_http(stream) as server:
        stream.server = server
        first = run_until(reading(server.url), tmp_path, 20)
        second = run_until(reading(server.url), tmp_path, 20)
        assert found(first) == found(second) == list(range(20))
        assert all("Last-Event-ID" not in request.headers for request in server.requests)


def test_what_was_received_before_an_orderly_stop_is_read_by_the_next_run(tmp_path: Path) -> None:
    stream = Numbers(500, ids=False)
    with run_http(stream) as server:
        stream.server = server
        source = SseSource(endpoint=server.url, schema={"n": "int64"})
        storage = open_storage(str(tmp_path))
        source.open(storage, job_id="job", node="op")
        start = source.initial_offset(time=0)
        wait_for(lambda: source.latest_offset(start, Limit(1, 0), parallelism=1) != start)
        wait_for(lambda: source._inbox is not None and len(source._inbox._messages) == 499)
        source.close()
    again = SseSource(endpoint=server.url, schema={"n": "int64"})
    again.open(storage, job_id="job", node="op")
    end = again.latest_offset(start, Limit(10, 0), parallelism=1)
    log = received.ReceivedLog(storage, "op")
    parts = range(1, end["received"]["parts"] + 1)
    assert sum(batch.num_rows for part in parts for batch in log.read(part)) == 500


# ------------------------------------------------------------------------------------------- content


def test_only_wanted_events_are_read_and_their_name_and_id_are_metadata(tmp_path: Path) -> None:
    body = (
        b"\xef\xbb\xbfid: 1\nevent: a\ndata: x\n\nevent: b\nid: 2\ndata: y\ndata: z\r\n\r\ndata: m\r\r: end\n"
    )
    answers = iter([Answer(headers=STREAM, parts=[bytes([one]) for one in body])])
    columns = "value TEXT, e TEXT METADATA FROM 'event', i TEXT METADATA FROM 'id'"
    with run_http(lambda _: next(answers, Answer(204))) as server:
        options = {"format": "raw_string", "events": "b,message"}
        result = run_in_process(
            reading(server.url, columns, "value, e, i", **options), tmp_path, idle_epochs=10**9
        )
    (rows,) = result.rows.values()
    assert [tuple(row.values())[:3] for row in rows.to_pylist()] == [
        ("y\nz", "b", "2"),
        ("m", "message", "2"),
    ]
    # The last event had no id of its own: all up to it is known by that of the one before.
    assert server.requests[1].headers["Last-Event-ID"] == "2"


def test_events_that_cannot_be_read_end_the_run_or_are_dropped(tmp_path: Path) -> None:
    parts = [f"id: {at}\ndata: {data}\n\n".encode() for at, data in enumerate(['{"n": 1}', "{", '{"n": 2}'])]

    def answer(request: Request) -> Answer:
        return (
            Answer(204)
            if request.headers.get("Last-Event-ID") == "2"
            else Answer(headers=STREAM, parts=parts)
        )

    with run_http(answer) as server:
        with pytest.raises(BadLineError, match=r"place \d of part \d of what was received") as caught:
            run_in_process(reading(server.url), tmp_path / "a", idle_epochs=10**9)
        assert server.url in str(caught.value)
        dropped = run_in_process(reading(server.url, bad_data="drop"), tmp_path / "b", idle_epochs=10**9)
        assert found(dropped) == [1, 2]


def test_an_event_that_is_too_large_ends_the_run(tmp_path: Path) -> None:
    parts = [b"data: 1\n" * 10] * 100
    with run_http(lambda _: Answer(headers=STREAM, parts=parts)) as server:
        pipeline = reading(server.url, "value TEXT", "value", max_event_size=1000, format="raw_string")
        with pytest.raises(ExternalError, match="more than 1000 bytes"):
            run_until(pipeline, tmp_path, 1)


# -------------------------------------------------------------------------------------- when things fail


def test_a_quiet_stream_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    never = threading.Event()

    def quiet() -> Iterator[bytes]:
        yield b'data: {"n": 1}\n\n'
        never.wait(30)

    with run_http(lambda _: Answer(headers=STREAM, parts=quiet())) as server:
        assert found(run_until(reading(server.url), tmp_path, 1)) == [1]
        assert "sse" not in {thread.name for thread in threading.enumerate()}
        never.set()


def test_a_quiet_stream_outlives_the_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(monkeypatch)
    monkeypatch.setattr(sse, "RECONNECT_SECONDS", 0.0)

    def answer(_: Request) -> Answer:
        if len(server.requests) == 1:
            return Answer(503)
        return Answer(headers=STREAM, parts=late())

    def late() -> Iterator[bytes]:
        wait_for(lambda: patience.contacts)
        patience.run_out()
        yield b'data: {"n": 1}\n\n'

    with run_http(answer) as server:
        assert found(run_until(reading(server.url), tmp_path, 1)) == [1]


def test_what_is_no_event_stream_is_refused(tmp_path: Path) -> None:
    with (
        run_http(lambda _: Answer(body=b"<html>", headers={"Content-Type": "text/html"})) as server,
        pytest.raises(ExternalError, match="`text/html`, which is no event stream"),
    ):
        run_until(reading(server.url), tmp_path, 1)
    with (
        run_http(lambda _: Answer(403, b"who are you? Bearer t0ken123")) as server,
        pytest.raises(ExternalError, match="403 Forbidden: who are you") as caught,
    ):
        run_until(reading(server.url, headers="Authorization: Bearer t0ken123"), tmp_path / "b", 1)
    assert "t0ken123" not in str(caught.value)


def test_a_page_in_the_place_of_a_stream_that_was_there_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Answer(body=b"<h1>Back soon</h1>", headers={"Content-Type": "text/html"})
    moved = Answer(302, headers={"Location": "https://maintenance.example/"})
    stream = Numbers(20, cut=10)
    pages = iter([page, moved, page])

    def answer(request: Request) -> Answer:
        return next(pages, stream(request)) if "Last-Event-ID" in request.headers else stream(request)

    with run_http(answer) as server:
        assert found(run_until(reading(server.url), tmp_path / "a", 20)) == list(range(20))
        monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
        stream.total, pages = 10, itertools.repeat(page)
        with pytest.raises(ExternalError, match="`text/html`, which is no event stream"):
            run_until(reading(server.url), tmp_path / "b", 20)


def test_a_server_that_is_not_there_ends_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ExternalError, match="sse does not answer"):
        run_until(reading("http://127.0.0.1:9/"), tmp_path, 1)


def test_streams_over_tls_are_read_and_left_in_good_order(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    stream = Numbers(10)
    with run_http(stream, tls=certificate) as server:
        stream.server = server
        options: dict[str, Any] = {"tls__ca": certificate[0]}
        assert found(run_until(reading(server.url, **options), tmp_path, 10)) == list(range(10))
        source = SseSource(endpoint=server.url, format="raw_string", tls_ca=str(certificate[0]))
        assert source.reach() == f"{server.url} is an event stream"
