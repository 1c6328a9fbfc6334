"""The nats sink against a real server, and who may log in."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError, PlanError, RefusedError
from headrace.connectors.nats import client as shared
from headrace.connectors.nats import sink as nats_sink
from headrace.connectors.nats.sink import NatsSink
from headrace.connectors.nats.source import NatsSource
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.nats import NatsServer, run_server
from tests.servers.processes import free_port
from tests.support import SinkDriver

T = TypeVar("T")

ROWS = 60
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def copying(server: NatsServer, origin: str, out: str, **more: str) -> Pipeline:
    options = {"servers": server.url, "subject": f"{out}.rows", **more}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return Pipeline.from_sql(
        f"""
        CREATE TABLE numbers (n BIGINT) WITH (
          connector = 'nats', type = 'source', format = 'json', servers = '{server.url}',
          stream = '{origin}', 'source.bounded' = 'true'
        );
        CREATE TABLE copied (n BIGINT) WITH (connector = 'nats', type = 'sink', format = 'json', {listed});
        INSERT INTO copied SELECT n FROM numbers;
        """,
        name="copying",
    )


def filled(server: NatsServer) -> str:
    stream = server.create()
    server.send(stream, [json.dumps({"n": n}) for n in range(ROWS)])
    return stream


def found(server: NatsServer, stream: str) -> Counter[int]:
    return Counter(json.loads(message.data)["n"] for message in server.read(stream))


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at: int) -> None:
        if name.startswith(step) and at == epoch:
            raise CrashError

    return on_step


# ---------------------------------------------------------------------------------------- guarantees


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kept", [True, False])
def test_a_crash_at_any_step_loses_nothing_and_with_a_stream_repeats_nothing(
    nats_server: NatsServer, tmp_path: Path, step: str, kept: bool
) -> None:
    stream, out = filled(nats_server), nats_server.create()
    more = {"stream": out} if kept else {}
    with pytest.raises(CrashError):
        run_in_process(
            copying(nats_server, stream, out, **more), tmp_path, epoch_rows=20, on_step=crash_at(step, 2)
        )
    run_in_process(copying(nats_server, stream, out, **more), tmp_path, parallelism=3, epoch_rows=20)
    seen = found(nats_server, out)
    assert set(seen) == set(range(ROWS))
    if kept:
        assert set(seen.values()) == {1}


@pytest.mark.parametrize("window", [120, 0.1])
def test_a_crash_inside_a_commit_leaves_each_message_once_even_after_the_window(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: float
) -> None:
    monkeypatch.setattr(nats_sink, "_BATCH_MESSAGES", 7)
    stream, out = filled(nats_server), nats_server.create(duplicate_window=window)
    answers, check = [], nats_sink._check

    def crashing(answer: Any, *more: Any) -> None:
        answers.append(answer)
        if len(answers) == 40:
            raise CrashError
        check(answer, *more)

    monkeypatch.setattr(nats_sink, "_check", crashing)
    with pytest.raises(CrashError):
        run_in_process(copying(nats_server, stream, out, stream=out), tmp_path, epoch_rows=30)
    monkeypatch.setattr(nats_sink, "_check", check)
    there = sum(found(nats_server, out).values())
    assert 30 < there < ROWS
    if window < 1:
        time.sleep(window * 3)
    run_in_process(copying(nats_server, stream, out, stream=out), tmp_path, epoch_rows=30)
    assert found(nats_server, out) == Counter(range(ROWS))


def test_a_connection_that_is_lost_inside_a_commit_costs_and_repeats_nothing(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_sink, "_BATCH_MESSAGES", 7)
    out, check = nats_server.create(duplicate_window=0.1), nats_sink._check
    cut: list[Any] = []

    def losing(answer: Any, *more: Any) -> None:
        if not cut:
            cut.append(answer)
            time.sleep(0.3)
            raise ConnectionResetError("lost")
        check(answer, *more)

    monkeypatch.setattr(nats_sink, "_check", losing)
    options = nats_server.options(subject=f"{out}.rows", stream=out)
    SinkDriver(lambda: NatsSink(**options), tmp_path).run(1, [pa.record_batch({"n": list(range(50))})])
    assert found(nats_server, out) == Counter(range(50))


def test_many_messages_are_written_in_their_order_with_their_ids(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    out = nats_server.create()
    options = nats_server.options(subject=f"{out}.rows", stream=out)
    rows = 2 * nats_sink._BATCH_MESSAGES + 10
    SinkDriver(lambda: NatsSink(**options), tmp_path).run(1, [pa.record_batch({"n": list(range(rows))})])
    messages = nats_server.read(out)
    assert [json.loads(one.data)["n"] for one in messages] == list(range(rows))
    assert len({one.headers["Nats-Msg-Id"] for one in messages}) == rows


# ------------------------------------------------------------------------------------------- content


def test_a_column_can_be_the_subject(nats_server: NatsServer, tmp_path: Path) -> None:
    out = nats_server.create()
    options = nats_server.options(stream=out, subject=f"{out}.rest", **{"sink.subject_field": "to"})
    driver = SinkDriver(lambda: NatsSink(**options), tmp_path)
    driver.run(1, [pa.record_batch({"n": [1, 2, 3], "to": [f"{out}.a", None, f"{out}.b.c"]})])
    assert [one.subject for one in nats_server.read(out)] == [f"{out}.a", f"{out}.rest", f"{out}.b.c"]
    for bad, problem in (("a b", ExternalError), ("a.*", ExternalError), (7, PlanError)):
        with pytest.raises(problem, match="subject"):
            driver.prepare(2, [pa.record_batch({"n": [1], "to": [bad]})])
    with pytest.raises(ConfigurationError, match="no column `to`"):
        driver.prepare(2, [pa.record_batch({"n": [1]})])


def test_changes_are_written_as_messages(nats_server: NatsServer, tmp_path: Path) -> None:
    out = nats_server.create()
    more = {"format": "debezium_json", "schema": {"k": "string"}, "primary_key": ["k"]}
    options = nats_server.options(stream=out, subject=out, **more)
    driver = SinkDriver(lambda: NatsSink(**options), tmp_path)
    driver.run(1, [pa.record_batch({"k": ["a", "b", "b"], "_retract": [True, False, True]})])
    (message,) = nats_server.read(out)
    assert json.loads(message.data)["op"] == "d"


# ---------------------------------------------------------------------------------- when things fail


def test_what_a_stream_refuses_fails_the_epoch(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.5)
    full = nats_server.create(max_msgs=1, discard="new")
    rows = [pa.record_batch({"n": [1, 2]})]

    def run(name: str, **more: Any) -> None:
        SinkDriver(lambda: NatsSink(**nats_server.options(**more)), tmp_path / name).run(1, rows)

    with pytest.raises(ExternalError, match=f"stream `{full}` does not take .* maximum messages exceeded"):
        run("a", subject=full, stream=full)
    with pytest.raises(ExternalError, match="expected stream does not match"):
        run("b", subject=full, stream=nats_server.create())
    with pytest.raises(ExternalError, match="subject `nobody`: no stream keeps it"):
        run("c", subject="nobody", stream=full)
    with pytest.raises(ExternalError, match="no stream `nowhere`"):
        run("d", subject=full, stream="nowhere")


def test_a_message_that_is_larger_than_servers_or_stream_allow_fails_in_the_task(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    narrow = nats_server.create(max_msg_size=1000)

    def sink(name: str, **more: Any) -> SinkDriver:
        return SinkDriver(lambda: NatsSink(**nats_server.options(**more)), tmp_path / name, job=name)

    def rows(size: int) -> list[pa.RecordBatch]:
        return [pa.record_batch({"s": ["y", "y" * size]})]

    with pytest.raises(RefusedError, match=r"its message has 2,000,008 bytes, and 1,048,576 are allowed"):
        sink("servers", subject="a").prepare(1, rows(2_000_000))
    with pytest.raises(RefusedError, match=r"its message has 908 bytes, and [78].. are allowed") as caught:
        sink("stream", subject=narrow, stream=narrow).prepare(1, rows(900))
    assert "max_msg_size" in str(caught.value)
    # What is accepted fits, with its headers.
    largest = sink("fits", subject=narrow, stream=narrow)
    largest.run(1, rows(1000 - 150 - len(narrow) - len('{"s":""}')))
    dropping = sink("drop", subject=narrow, stream=narrow, bad_data="drop")
    dropping.run(1, rows(900))
    assert dropping.metrics["bad_rows"] == 1
    assert len(nats_server.read(narrow)) == 3


def test_a_server_that_does_not_answer_fails_the_epoch_within_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.5)
    driver = SinkDriver(lambda: NatsSink(servers="127.0.0.1:1", subject="s"), tmp_path)
    with pytest.raises(ExternalError, match=r"NATS at 127\.0\.0\.1:1 does not answer"):
        driver.run(1, [pa.record_batch({"n": [1]})])


# ------------------------------------------------------------------------------------------ who asks


def seed(kind: str) -> tuple[bytes, str, Any]:
    """A new seed of a kind of key (operator, account, user), its public key and the key."""
    import nkeys  # type: ignore[import-untyped]

    prefix = {"O": nkeys.PREFIX_BYTE_OPERATOR, "A": nkeys.PREFIX_BYTE_ACCOUNT, "U": nkeys.PREFIX_BYTE_USER}
    made = nkeys.encode_seed(hashlib.sha256(f"{kind} of these tests".encode()).digest(), prefix[kind])
    pair = nkeys.from_seed(bytearray(made))
    return bytes(made), pair.public_key.decode(), pair


def token(signer: Any, issuer: str, subject: str, claims: dict[str, Any]) -> str:
    """A token as NATS wants it."""

    def text(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    body = {"jti": subject, "iat": 1_700_000_000, "iss": issuer, "sub": subject, "name": "t", "nats": claims}
    signed = f"{text({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{text(body)}"
    signature = base64.urlsafe_b64encode(signer.sign(signed.encode())).rstrip(b"=").decode()
    return f"{signed}.{signature}"


def credentials() -> Iterator[tuple[str, dict[str, str]]]:
    """How a server may be told whom to let in, and the options that go with it."""
    user_seed, user, _ = seed("U")
    yield (
        "authorization { user: ada, password: open-sesame }",
        {"auth.type": "credentials", "auth.username": "ada", "auth.password": "open-sesame"},
    )
    nkey = {"auth.type": "nkey", "auth.nkey_seed": user_seed.decode()}
    yield f"authorization {{ users: [ {{ nkey: {user} }} ] }}", nkey
    (_, operator, operator_pair), (_, account, account_pair) = seed("O"), seed("A")
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "wildcards": True}
    tokens = {
        "operator": token(operator_pair, operator, operator, {"type": "operator", "version": 2}),
        "account": token(
            operator_pair,
            operator,
            account,
            {"type": "account", "version": 2, "limits": {**limits, **storage}},
        ),
        "user": token(
            account_pair,
            account,
            user,
            {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}},
        ),
    }
    accounts = f"resolver: MEMORY\nresolver_preload: {{ {account}: {tokens['account']} }}"
    yield (
        f"jetstream: disabled\noperator: {tokens['operator']}\n{accounts}",
        {"auth.type": "jwt", "auth.jwt": tokens["user"], "auth.nkey_seed": user_seed.decode()},
    )


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["credentials", "nkey", "jwt"])
def test_who_may_log_in_can_and_others_are_refused_without_a_word_of_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr(shared, "FIRST_CONTACT_SECONDS", 20)
    pytest.importorskip("nkeys")
    config, login = list(credentials())[kind]
    with run_server(tmp_path, config) as server:
        good = NatsSource(**server.options(subject="s", format="raw_string", **login))
        good.validate()
        assert good.reach().startswith("NATS ")
        began = time.monotonic()
        with pytest.raises(ExternalError, match="refuses access") as caught:
            NatsSource(**server.options(subject="s", format="raw_string")).reach()
        assert time.monotonic() - began < 15  # it is not tried again
        shown = [str(caught.value), good.display(), repr(good.options)]
        if kind == 0:
            wrong = {**login, "auth.password": "wrong-sesame"}
            with pytest.raises(ExternalError, match="refuses access") as caught:
                NatsSource(**server.options(subject="s", format="raw_string", **wrong)).reach()
            shown.append(str(caught.value))
        hidden = [
            "sesame",
            *(value for name, value in login.items() if name in {"auth.jwt", "auth.nkey_seed"}),
        ]
        assert not [text for text in shown for secret in hidden if secret in text]


def test_servers_are_reached_through_tls_and_only_if_their_certificate_is_known(
    certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "FIRST_CONTACT_SECONDS", 0.5)
    cert, key = certificate
    with run_server(tmp_path / "server", f"tls {{ cert_file: '{cert}', key_file: '{key}' }}") as server:
        known = {"subject": "s", "format": "raw_string", "servers": f"tls://127.0.0.1:{server.port}"}
        assert NatsSource(**{**known, "tls.ca": str(cert)}).reach().startswith("NATS ")
        with pytest.raises(ExternalError, match=r"does not answer: .*certificate"):
            NatsSource(**known).reach()
        missing = NatsSource(**{**known, "tls.ca": str(tmp_path / "nothing.pem")})
        with pytest.raises(ConfigurationError, match="cannot be read"):
            missing.validate()


# -------------------------------------------------------------------------------------- several servers


def once_it_answers(work: Callable[[], T]) -> T:
    """What `work` returns, when servers have found each other and have a leader."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return work()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_a_stream_with_copies_is_read_and_written_while_a_server_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "ANSWER_SECONDS", 1.0)
    routes = [free_port() for _ in range(3)]
    servers = []
    for index, port in enumerate(routes):
        folder = tmp_path / f"server{index}"
        folder.mkdir()
        others = ", ".join(f"nats://127.0.0.1:{other}" for other in routes)
        config = f"cluster {{ name: tests, listen: 127.0.0.1:{port}, routes: [{others}] }}"
        servers.append(NatsServer(folder, f"server_name: s{index}\n{config}"))
    try:
        for server in servers:
            server.start(wait=False)
        stream, out = (once_it_answers(lambda: servers[0].create(num_replicas=3)) for _ in range(2))
        servers[0].send(stream, [json.dumps({"n": n}) for n in range(300)])
        listed = ",".join(server.url for server in servers)
        pipeline = copying(servers[0], stream, out, stream=out, servers=listed)

        def stop_one(step: str, epoch: int) -> None:
            if (step, epoch) == ("metadata_written", 2):
                threading.Thread(target=servers[1].stop).start()

        result = run_in_process(pipeline, tmp_path / "state", epoch_rows=100, on_step=stop_one)
        assert result.reason == "finished"
        assert once_it_answers(lambda: found(servers[0], out)) == Counter(range(300))
    finally:
        for server in servers:
            server.stop()


def test_no_failure_of_the_client_is_taken_for_a_bug(nats_server: NatsServer) -> None:
    from nats.errors import BadSubjectError

    sink = NatsSink(**nats_server.options(subject="s"))
    failure = sink.servers.failure(BadSubjectError())
    assert isinstance(failure, HeadraceError)
    assert failure.domain == "external"
