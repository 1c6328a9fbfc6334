"""The polling_http source against real HTTP servers."""

from __future__ import annotations

import email.utils
import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, RefusedError
from headrace.connectors import received
from headrace.connectors.http.polling import PollingHttpSource
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.http import IN_TIME, Answer, Request, found, query, run_http, run_until, table, wait_for

STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "committed")


class Counting:
    """Each answer is the next number, as long as there are some to give."""

    def __init__(self, count: int = 10**9) -> None:
        self._count, self._given, self._asked_in_vain = count, 0, 0

    def __call__(self, _: Request) -> Answer:
        if self._given >= self._count:
            self._asked_in_vain += 1
            return Answer(204)
        self._given += 1
        return Answer(body=json.dumps({"n": self._given - 1}).encode())

    def give(self, count: int) -> None:
        """Let there be some more."""
        self._count += count

    def wait(self) -> None:
        """Until all have come: an answer that is under way when the run ends is not received."""
        before = self._asked_in_vain
        # The first of the two may have been asked before there were some more.
        wait_for(lambda: self._given == self._count and self._asked_in_vain > before + 1)


def polling(url: str, columns: str = "n BIGINT", select: str = "n", **more: Any) -> Any:
    options = {"endpoint": url, "poll_interval_ms": 1, **more}
    return query(table("polling_http", columns, **options) + f"SELECT {select} FROM numbers")


# ------------------------------------------------------------------------------------------- what is read


def test_each_answer_is_a_row_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    numbers = Counting(5)

    def wait(step: str, epoch: int) -> None:
        if step == "begin" and epoch == 1:
            numbers.wait()

    with run_http(numbers) as server:
        first = run_until(polling(server.url), tmp_path, 1, epoch_rows=1, on_step=wait)
        numbers.give(5)
        second = run_until(polling(server.url), tmp_path, 10 - first.rows_in)
        assert found(first, second) == list(range(10))
        assert first.rows_in
        assert second.rows_in


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_neither_loses_nor_repeats_an_answer(tmp_path: Path, step: str) -> None:
    out, numbers = tmp_path / "out.json", Counting(1)

    def written() -> list[int]:
        return [json.loads(line)["n"] for line in out.read_text().splitlines()] if out.exists() else []

    with run_http(numbers) as server:

        def build() -> Any:
            return query(
                table("polling_http", "n BIGINT", endpoint=server.url, poll_interval_ms=1)
                + table("single_file", "n BIGINT", "sink", "copied", path=out)
                + "INSERT INTO copied SELECT n FROM numbers;"
            )

        def crash(name: str, epoch: int) -> None:
            if name.startswith("committed") and epoch == 1:
                numbers.give(1)
            if name.startswith(step) and epoch == 2:
                numbers.give(5)
                numbers.wait()
                raise CrashError

        with pytest.raises(CrashError):
            run_until(build(), tmp_path / "state", 10**9, epoch_rows=1, on_step=crash)
        numbers.give(3)
        deadline = time.monotonic() + IN_TIME
        run_in_process(
            build(),
            tmp_path / "state",
            idle_epochs=10**9,
            stop=lambda: len(written()) >= 10 or time.monotonic() > deadline,
        )
    assert written() == list(range(10))


def test_only_what_has_changed_is_a_row_also_after_a_restart(tmp_path: Path) -> None:
    bodies = {"now": b'{"n": 1}'}
    with run_http(lambda _: Answer(body=bodies["now"])) as server:
        pipeline = polling(server.url, emit_behavior="changed")

        def after(polls: int) -> Callable[[], bool]:
            base = len(server.requests)
            return lambda: len(server.requests) >= base + polls

        first = run_until(pipeline, tmp_path, 1)
        second = run_in_process(pipeline, tmp_path, idle_epochs=10**9, stop=after(5))
        bodies["now"] = b'{"n": 2}'
        third = run_until(pipeline, tmp_path, 1)
    assert [found(first), found(second), found(third)] == [[1], [], [2]]


def test_a_server_that_knows_etags_is_asked_for_what_is_new(tmp_path: Path) -> None:
    state = {"n": 1}

    def answer(request: Request) -> Answer:
        tag = f'"{state["n"]}"'
        if request.headers.get("If-None-Match") == tag:
            if len(server.requests) == 5:
                state["n"] += 1
            return Answer(304, headers={"ETag": tag})
        return Answer(body=json.dumps(state).encode(), headers={"ETag": tag})

    with run_http(answer) as server:
        assert found(run_until(polling(server.url, emit_behavior="changed"), tmp_path, 2)) == [1, 2]
        assert "If-None-Match" not in server.requests[0].headers


def test_an_answer_of_lines_has_several_rows_and_an_empty_one_has_none(tmp_path: Path) -> None:
    answers = iter([Answer(204), Answer(body=b'{"n": 1}\n{"n": 2}\n'), Answer(body=b"")])
    with run_http(lambda _: next(answers, Answer(204))) as server:
        assert found(run_until(polling(server.url, framing="newline"), tmp_path, 2)) == [1, 2]


def test_method_body_and_headers_are_sent(tmp_path: Path) -> None:
    with run_http(Counting()) as server:
        options = {
            "method": "POST",
            "body": '{"ask": "ü"}',
            "headers": "Authorization: Bearer t0ken, X-A: 1, 2",
        }
        run_until(polling(server.url + "/path?q=1", **options), tmp_path, 1)
        request = server.requests[0]
    assert (request.method, request.path, request.body) == ("POST", "/path?q=1", '{"ask": "ü"}'.encode())
    assert (request.headers["Authorization"], request.headers["X-A"]) == ("Bearer t0ken", "1, 2")


def test_a_compressed_answer_is_read_and_a_huge_one_refused(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        body = b'{"n": 1}' + (b" " * 5_000_000 if request.path == "/huge" else b"")
        return Answer(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})

    with run_http(answer) as server:
        assert set(found(run_until(polling(server.url), tmp_path / "a", 1))) == {1}
        with pytest.raises(ExternalError, match="more than 1000000 bytes") as caught:
            run_until(polling(server.url + "/huge", max_body_size="1MB"), tmp_path / "b", 1)
    assert "max_body_size" in str(caught.value)


def test_bad_answers_end_the_run_with_their_place_or_are_dropped_or_set_aside(tmp_path: Path) -> None:
    out = tmp_path / "bad.json"
    answers = (b"{", b'{"n": 1}')
    with run_http(lambda _: Answer(body=answers[len(server.requests) % 2])) as server:
        with pytest.raises(BadLineError, match=r"place \d+ of part \d+ of what was received"):
            run_until(polling(server.url), tmp_path / "a", 3)
        dropped = run_until(polling(server.url, bad_data="drop"), tmp_path / "b", 2)
        letters = "record BYTEA, content TEXT, error TEXT, source TEXT, position TEXT"
        options: dict[str, Any] = {"endpoint": server.url, "poll_interval_ms": 1}
        kept = {"bad_data": "dead_letter", "dead_letter_table": "letters"}
        sql = table("single_file", letters, "sink", "letters", path=out)
        sql += table("polling_http", "n BIGINT", **options, **kept) + "SELECT n FROM numbers"
        assert set(found(run_until(query(sql), tmp_path / "c", 4))) == {1}
    letter = json.loads(out.read_text().splitlines()[0])
    assert (letter["content"], letter["source"]) == ("{", server.url)
    assert "of what was received" in letter["position"]
    assert set(found(dropped)) == {1}
    assert sum(one.get("bad_rows", 0) for one in dropped.metrics.values()) >= 1


# ------------------------------------------------------------------------------------- when things fail


def test_a_busy_server_is_asked_again_and_not_before_the_time_that_it_names(tmp_path: Path) -> None:
    date = email.utils.formatdate(time.time() - 5, usegmt=True)
    troubles: Iterator[Answer] = iter(
        [
            Answer(503),
            Answer(429, headers={"Retry-After": "1"}),
            Answer(500, headers={"Retry-After": date}),
            Answer(body=b'{"n": 1}'),
        ]
    )
    times: list[float] = []

    def answer(_: Request) -> Answer:
        times.append(time.monotonic())
        return next(troubles, Answer(204))

    with run_http(answer) as server:
        assert found(run_until(polling(server.url), tmp_path, 1)) == [1]
    assert times[2] - times[1] >= 1.0


def test_a_server_that_goes_away_and_comes_back_costs_no_answers(tmp_path: Path) -> None:
    with run_http(Counting()) as server:

        def restart(step: str, epoch: int) -> None:
            if step == "begin" and epoch == 2:
                server.stop()
                server.start()

        numbers = found(run_until(polling(server.url), tmp_path, 6, on_step=restart))
    assert sorted(set(numbers)) == sorted(numbers)
    # An answer that was cut off by the restart was given, and never came.
    assert len(set(range(numbers[-1] + 1)) - set(numbers)) <= 1


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "Authorization"), (404, "endpoint"), (301, "write the new address")]
)
def test_an_answer_that_will_not_be_better_ends_the_run_at_once(
    tmp_path: Path, status: int, hint: str
) -> None:
    headers = {"Location": "https://elsewhere.example/x?token=s3cret"} if status == 301 else {}
    with run_http(lambda _: Answer(status, b"no:  t0ken1234\n is not known", headers)) as server:
        with pytest.raises(ExternalError) as caught:
            run_until(polling(server.url, headers="Authorization: Bearer t0ken1234"), tmp_path, 1)
        assert len(server.requests) == 1
    told = str(caught.value)
    assert hint in told
    assert str(status) in told
    assert server.url in told
    assert "t0ken1234" not in told
    assert "s3cret" not in told


def test_a_server_that_does_not_get_well_ends_the_run_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
    with (
        run_http(lambda _: Answer(502, b"<h1>Bad\n gateway</h1>")) as server,
        pytest.raises(ExternalError, match="502 Bad Gateway: <h1>Bad gateway</h1>"),
    ):
        run_until(polling(server.url), tmp_path, 1)
    with pytest.raises(ExternalError, match="polling_http does not answer") as caught:
        run_until(polling(server.url), tmp_path / "b", 1)
    assert "refused" in str(caught.value)
    with pytest.raises(ExternalError, match="polling_http does not answer"):
        run_until(polling("http://no-such-host.invalid/"), tmp_path / "c", 1)


def test_an_error_of_a_server_that_was_well_may_pass(tmp_path: Path) -> None:
    moved = Answer(302, headers={"Location": "https://maintenance.example/"})
    answers = iter([Answer(body=b'{"n": 1}'), Answer(404), Answer(401), moved, Answer(body=b'{"n": 2}')])
    with run_http(lambda _: next(answers, Answer(204))) as server:
        assert found(run_until(polling(server.url), tmp_path, 2)) == [1, 2]


def test_a_server_that_was_well_and_sends_elsewhere_for_good_ends_the_run_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
    moved = Answer(301, headers={"Location": "https://elsewhere.example/"})
    answers = iter([Answer(body=b'{"n": 1}')])
    with (
        run_http(lambda _: next(answers, moved)) as server,
        pytest.raises(ExternalError, match="301 Moved Permanently, to https://elsewhere") as caught,
    ):
        run_until(polling(server.url), tmp_path, 2)
    assert caught.value.retry
    assert "write the new address" in str(caught.value)


def test_redirects_are_followed_on_the_host_and_not_off_it(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "/there":
            return Answer(body=b'{"n": 1}')
        if request.path == "/loop":
            return Answer(302, headers={"Location": "/loop"})
        if request.path == "/away":
            return Answer(302, headers={"Location": f"{server.url}/there".replace("127.0.0.1", "localhost")})
        return Answer(302, headers={"Location": "/there"})

    with run_http(answer) as server:
        assert set(found(run_until(polling(server.url), tmp_path / "a", 1))) == {1}
        for path in ("/away", "/loop"):
            with pytest.raises(ExternalError, match="sent elsewhere: 302 Found, to http://"):
                run_until(polling(server.url + path), tmp_path / path[1:], 1)


def test_proxies_of_the_environment_are_not_asked_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with run_http(Counting()) as server:
        assert found(run_until(polling(server.url), tmp_path, 1))[0] == 0


def test_certificates_are_checked(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with run_http(Counting(), tls=certificate) as server:
        with pytest.raises(ExternalError, match="certificate of the server is not trusted") as caught:
            run_until(polling(server.url), tmp_path / "a", 1)
        assert "tls.ca" in str(caught.value)
        trusted: dict[str, Any] = {"tls__ca": certificate[0]}
        assert found(run_until(polling(server.url, **trusted), tmp_path / "b", 1))[0] == 0
    with pytest.raises(ConfigurationError, match=r"`tls\.ca`: `nowhere\.pem` cannot be read"):
        run_until(polling(server.url, tls__ca="nowhere.pem"), tmp_path / "c", 1)


def test_a_server_that_accepts_and_says_nothing_does_not_keep_the_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "CLOSE_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert run_in_process(polling(url), tmp_path, idle_epochs=3).reason == "stopped"


def test_no_log_holds_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with run_http(Counting()) as server:
        run_until(polling(server.url + "/?key=s3cret1", headers="X-Key: s3cret2"), tmp_path, 1)
    assert "s3cret" not in caplog.text


def test_redirects_do_not_carry_headers_to_another_port(tmp_path: Path) -> None:
    with (
        run_http(lambda _: Answer(body=b'{"n": 1}')) as other,
        run_http(lambda _: Answer(307, headers={"Location": f"{other.url}/there"})) as server,
    ):
        secrets = {"headers": "X-Api-Key: s3cret1, Cookie: id=s3cret2, Authorization: Bearer s3cret3"}
        for pipeline in (
            polling(server.url, **secrets),
            query(table("sse", "n BIGINT", endpoint=server.url, **secrets) + "SELECT n FROM numbers"),
        ):
            with pytest.raises(RefusedError, match=f"sent elsewhere: 307 .*, to {other.url}/there") as caught:
                run_until(pipeline, tmp_path, 1)
            assert "write the new address" in str(caught.value)
        assert server.requests[0].headers["X-Api-Key"] == "s3cret1"
        assert not other.requests


def test_a_look_says_what_answers_and_asks_for_no_data() -> None:
    with run_http(lambda _: Answer(403)) as server:
        source = PollingHttpSource(endpoint=server.url + "/x?key=s3cret", format="raw_string")
        assert source.reach() == f"{server.url}/x answers 403 to OPTIONS"
        server.answer = lambda _: Answer(401)
        with pytest.raises(RefusedError, match="401"):
            source.reach()
        assert {request.method for request in server.requests} == {"OPTIONS"}
    with pytest.raises(ExternalError, match="does not answer"):
        source.reach()
