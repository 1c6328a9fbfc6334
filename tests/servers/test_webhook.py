"""The webhook sink against real HTTP servers."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.base import retry
from headrace.base.errors import ExternalError
from headrace.base.waits import Waits
from headrace.connectors.http import client as http_client
from headrace.connectors.http import webhook
from headrace.connectors.http.webhook import WebhookSink
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.http import Answer, HttpServer, Request, query, run_http, table, wait_for
from tests.support import SinkDriver

ROWS = 60
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def sink(url: str, folder: Path, **options: Any) -> SinkDriver:
    return SinkDriver(lambda: WebhookSink(endpoint=url, **options), folder)


def numbers(count: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": list(range(count))})]


def sent(server: HttpServer) -> Counter[int]:
    return Counter(json.loads(request.body)["n"] for request in server.requests)


def copying(url: str, **options: Any) -> Any:
    rows = "\n".join(json.dumps({"n": n}) for n in range(ROWS))
    Path("in.json").write_text(rows)
    return query(
        table("single_file", "n BIGINT", path="in.json", wait_for_control="false")
        + table("webhook", "n BIGINT", "sink", "copied", endpoint=url, **options)
        + "INSERT INTO copied SELECT n FROM numbers;"
    )


def accept(_: Request) -> Answer:
    return Answer(201, b"thank you")


# ---------------------------------------------------------------------------------------- guarantees


def test_each_row_is_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with run_http(accept) as server:
        run_in_process(copying(server.url + "/hook", headers="X-Token: t0ken"), tmp_path / "state")
        assert sent(server) == Counter(range(ROWS))
        request = server.requests[0]
        assert (request.method, request.path) == ("POST", "/hook")
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["X-Token"] == "t0ken"
        assert len({one.headers["Idempotency-Key"] for one in server.requests}) == ROWS


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_no_row_and_repeats_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with run_http(accept) as server:
        with pytest.raises(CrashError):
            run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20, on_step=crash)
        run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
        assert sent(server) == Counter(range(ROWS))


def test_a_crash_inside_a_commit_repeats_requests_with_their_keys_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with run_http(accept) as server:
        kept = webhook._Work._send

        def crashing(work: Any, index: int, body: bytes) -> None:
            if len(server.requests) >= 30:
                raise CrashError
            kept(work, index, body)

        monkeypatch.setattr(webhook._Work, "_send", crashing)
        with pytest.raises(CrashError):
            run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
        assert set(sent(server)) == set(range(ROWS))
        assert len(server.requests) > ROWS
        by_key = {one.headers["Idempotency-Key"]: one.body for one in server.requests}
    assert Counter(json.loads(body)["n"] for body in by_key.values()) == Counter(range(ROWS))


def test_a_server_that_restarts_during_a_commit_costs_no_rows(tmp_path: Path) -> None:
    lock = threading.Lock()
    restarted: list[threading.Thread] = []

    def answer(_: Request) -> Answer:
        with lock:
            if len(server.requests) >= 100 and not restarted:
                restarted.append(threading.Thread(target=restart))
                restarted[0].start()
        return Answer()

    def restart() -> None:
        server.stop()
        server.start()

    with run_http(answer) as server:
        sink(server.url, tmp_path).run(1, numbers(300))
        restarted[0].join()
        by_key = {one.headers["Idempotency-Key"]: one.body for one in server.requests}
    assert Counter(json.loads(body)["n"] for body in by_key.values()) == Counter(range(300))


def test_an_epoch_that_was_sent_is_not_sent_again(tmp_path: Path) -> None:
    with run_http(accept) as server:
        driver = sink(server.url, tmp_path)
        data = driver.prepare(1, numbers(5), numbers(3))
        assert not server.requests
        driver.commit(1, data)
        driver.commit(1, data)
        assert len(server.requests) == 8


# ------------------------------------------------------------------------------------------- content


def test_one_request_at_a_time_keeps_the_order(tmp_path: Path) -> None:
    with run_http(accept) as server:
        sink(server.url, tmp_path, max_in_flight=1).run(1, numbers(50))
        assert [json.loads(request.body)["n"] for request in server.requests] == list(range(50))


def test_no_more_requests_are_under_way_than_allowed(tmp_path: Path) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def answer(_: Request) -> Answer:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1
        return Answer()

    with run_http(answer) as server:
        sink(server.url, tmp_path, max_in_flight=3).run(1, numbers(40))
    assert 2 <= most[0] <= 3


@pytest.mark.parametrize(
    ("how", "kind", "bodies"),
    [
        ("lines", "application/x-ndjson", [b'{"n":0}\n{"n":1}\n', b'{"n":2}\n{"n":3}\n', b'{"n":4}\n']),
        ("array", "application/json", [b'[{"n":0},{"n":1}]', b'[{"n":2},{"n":3}]', b'[{"n":4}]']),
    ],
)
def test_rows_go_together_as_lines_or_as_an_array(
    tmp_path: Path, how: str, kind: str, bodies: list[bytes]
) -> None:
    with run_http(accept) as server:
        sink(server.url, tmp_path, batch_size=2, batch_format=how, max_in_flight=1).run(1, numbers(5))
        assert [request.body.replace(b" ", b"") for request in server.requests] == bodies
        assert {request.headers["Content-Type"] for request in server.requests} == {kind}


def test_headers_of_the_user_come_before_our_own(tmp_path: Path) -> None:
    headers = "content-type: text/csv, Idempotency-Key: mine, User-Agent: me"
    with run_http(accept) as server:
        driver = sink(server.url, tmp_path, headers=headers, format="raw_string")
        driver.run(1, [pa.record_batch({"value": ["a;b"]})])
        (request,) = server.requests
    assert request.body == b"a;b"
    given = {name.lower(): value for name, value in request.headers.items()}
    assert (given["content-type"], given["idempotency-key"], given["user-agent"]) == (
        "text/csv",
        "mine",
        "me",
    )


# -------------------------------------------------------------------------------------- when things fail


def in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    left = iter(answers)
    return lambda _: next(left, Answer())


def test_a_busy_server_is_asked_again_with_the_same_key(tmp_path: Path) -> None:
    trouble = in_turn(Answer(503), Answer(429, headers={"Retry-After": "0"}), Answer(500))
    with run_http(trouble) as server:
        sink(server.url, tmp_path).run(1, numbers(1))
        assert len(server.requests) == 4
        assert len({one.headers["Idempotency-Key"] for one in server.requests}) == 1


def test_a_server_is_given_the_time_that_it_asks_for_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "PATIENCE_SECONDS", 0.3)
    later = {"Retry-After": "1"}
    times: list[float] = []
    answers = iter([Answer(429, headers=later), Answer(503, headers=later)])

    def answer(_: Request) -> Answer:
        times.append(time.monotonic())
        return next(answers, Answer())

    with run_http(answer) as server:
        # By this clock nothing takes time but the waits that are asked for, each a second.
        clock = SimpleNamespace(monotonic=lambda: max(0.0, len(server.requests) - 1.0))
        monkeypatch.setattr(webhook, "time", clock)
        monkeypatch.setattr(retry, "time", clock)
        sink(server.url, tmp_path).run(1, numbers(1))
        first, second, third = times
        assert min(second - first, third - second) >= 1
        monkeypatch.setattr(webhook, "LONGEST_SECONDS", 1.5)
        server.requests.clear()
        server.answer = lambda _: Answer(429, headers=later)
        with pytest.raises(ExternalError, match="429"):
            sink(server.url, tmp_path).run(2, numbers(1))
        assert len(server.requests) == 2


def test_a_refused_row_ends_the_run_with_the_beginning_of_the_answer(tmp_path: Path) -> None:
    said = b"n is  not\nallowed, t0ken123: " + b"x" * 10_000
    with run_http(lambda _: Answer(422, said)) as server:
        with pytest.raises(ExternalError, match="422 Unprocessable Entity: n is not allowed") as caught:
            sink(server.url, tmp_path, headers={"Authorization": "Bearer t0ken123"}).run(1, numbers(500))
        assert len(server.requests) <= 8
    assert not caught.value.retry
    assert "t0ken123" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with (
        run_http(lambda _: Answer(302, headers={"Location": "/elsewhere"})) as server,
        pytest.raises(ExternalError, match=r"sent elsewhere: 302 Found, to http.*/elsewhere"),
    ):
        sink(server.url, tmp_path).run(1, numbers(1))


def test_a_server_that_does_not_get_well_ends_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "PATIENCE_SECONDS", 0.3)
    with run_http(lambda _: Answer(500, b"oops")) as server:
        with pytest.raises(ExternalError, match="500 Internal Server Error: oops"):
            sink(server.url, tmp_path).run(1, numbers(20))
        server.requests.clear()
        server.answer = in_turn(Answer(429, headers={"Retry-After": "7200"}))
        with pytest.raises(ExternalError, match="429"):
            sink(server.url, tmp_path).run(2, numbers(1))
        assert len(server.requests) == 1
    with pytest.raises(ExternalError, match="webhook does not answer") as caught:
        sink(server.url + "/hook?key=s3cret", tmp_path).run(3, numbers(1))
    assert "s3cret" not in str(caught.value)


def test_what_was_not_sent_is_sent_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with run_http(lambda _: Answer(403)) as server:
        with pytest.raises(ExternalError, match="403"):
            run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
        server.requests.clear()
        server.answer = accept
        run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
        assert sent(server) == Counter(range(ROWS))


def test_certificates_are_checked_and_proxies_are_not_asked_for_this_machine(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with run_http(accept, tls=certificate) as server:
        with pytest.raises(ExternalError, match="certificate of the server is not trusted"):
            sink(server.url, tmp_path).run(1, numbers(1))
        sink(server.url, tmp_path, **{"tls.ca": str(certificate[0])}).run(2, numbers(3))
        assert len(server.requests) == 3


def test_a_look_sends_nothing_and_says_what_answers() -> None:
    with run_http(lambda _: Answer(405)) as server:
        assert WebhookSink(endpoint=server.url).reach() == f"{server.url} answers 405 to OPTIONS"
        assert server.requests[0].method == "OPTIONS"
        server.answer = lambda _: Answer(401)
        with pytest.raises(ExternalError, match="401"):
            WebhookSink(endpoint=server.url).reach()


def test_a_commit_tells_what_it_waits_for_and_that_it_is_back(tmp_path: Path) -> None:
    waits = Waits(threading.Event(), lambda _: None)
    with run_http(lambda _: Answer()) as server, waits.active():
        driver = sink(server.url, tmp_path)
        server.stop()

        def start_again() -> None:
            wait_for(lambda: waits.current)
            names.extend(wait.name for wait in waits.current)
            server.start()

        names: list[str] = []
        starting = threading.Thread(target=start_again)
        starting.start()
        driver.run(1, numbers(3))
        starting.join()
        assert sent(server) == Counter(range(3))
    assert names == [f"webhook {server.url}"]
    assert waits.current == []


def test_a_run_that_is_told_to_stop_does_not_wait_in_a_commit(tmp_path: Path) -> None:
    stop = threading.Event()
    waits = Waits(stop, lambda _: None)
    with run_http(lambda _: Answer()) as server:
        driver = sink(server.url, tmp_path)

    def stop_the_run() -> None:
        wait_for(lambda: waits.current)
        stop.set()

    stopping = threading.Thread(target=stop_the_run)
    stopping.start()
    with waits.active(), pytest.raises(ExternalError, match="does not answer"):
        driver.run(1, numbers(3))
    stopping.join()
