"""The mqtt source against a real broker."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import BadLineError, ExternalError
from headrace.connectors import received
from headrace.connectors.mqtt import connection as mqtt
from headrace.connectors.mqtt.source import MqttSource
from headrace.model.operator import Limit
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.http import found, query, run_until, table, wait_for
from tests.servers.mqtt import PASSWORD, USER, Mosquitto, run_mosquitto, subscribe

LEVELS = {"AtMostOnce": 0, "AtLeastOnce": 1, "ExactlyOnce": 2}
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "committed")


def numbered(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def reading(broker: Mosquitto, topic: str, columns: str = "n BIGINT", select: str = "n", **more: Any) -> Any:
    options = {"url": broker.url, "topic": topic, **more}
    return query(table("mqtt", columns, **options) + f"SELECT {select} FROM numbers")


def copying(broker: Mosquitto, topic: str, out: Path, qos: str) -> str:
    return (
        table("mqtt", "n BIGINT", url=broker.url, topic=topic, qos=qos)
        + table("single_file", "n BIGINT", "sink", "copied", path=out)
        + "INSERT INTO copied SELECT n FROM numbers;"
    )


def lines(out: Path) -> Counter[int]:
    text = out.read_text() if out.exists() else ""
    return Counter(json.loads(line)["n"] for line in text.splitlines())


def stop_at(out: Path, total: int) -> Callable[[], bool]:
    return lambda: len(lines(out)) >= total


# ---------------------------------------------------------------------------------------- guarantees


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", ["AtLeastOnce", "ExactlyOnce"])
def test_messages_of_a_time_without_a_run_are_read_by_the_next(
    mosquitto: Mosquitto, tmp_path: Path, qos: str, version: str
) -> None:
    topic = mosquitto.topic()
    pipeline = reading(mosquitto, topic, qos=qos, protocol=version)
    subscribe(pipeline, tmp_path)
    mosquitto.send(topic, numbered(0, 200), qos=LEVELS[qos])
    first = run_until(pipeline, tmp_path, 200)
    mosquitto.send(topic, numbered(200, 230), qos=LEVELS[qos])
    second = run_until(pipeline, tmp_path, 30)
    third = run_in_process(pipeline, tmp_path, idle_epochs=5)
    assert [found(first), found(second), found(third)] == [[*range(200)], [*range(200, 230)], []]


@pytest.mark.parametrize("qos", ["AtLeastOnce", "ExactlyOnce"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_nothing(mosquitto: Mosquitto, tmp_path: Path, step: str, qos: str) -> None:
    topic, out, state = mosquitto.topic(), tmp_path / "out.json", tmp_path / "state"
    sql = copying(mosquitto, topic, out, qos)
    subscribe(query(sql), state)
    mosquitto.send(topic, numbered(0, 100), qos=2)

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with pytest.raises(CrashError):
        run_until(query(sql), state, 10**9, on_step=crash, epoch_rows=20)
    run_in_process(query(sql), state, idle_epochs=10**9, stop=stop_at(out, 100))
    assert lines(out) == Counter(range(100))


@pytest.mark.parametrize(("qos", "times"), [("AtLeastOnce", 2), ("ExactlyOnce", 1)])
def test_a_message_whose_acknowledgement_is_lost_comes_again_and_counts_as_promised(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: str, times: int
) -> None:
    topic = mosquitto.topic()
    pipeline = reading(mosquitto, topic, qos=qos)
    subscribe(pipeline, tmp_path)
    mosquitto.send(topic, numbered(0, 50), qos=2)
    with monkeypatch.context() as patch:
        patch.setattr(MqttSource, "_confirm", lambda *_: None)
        first = run_until(pipeline, tmp_path, 50)
    mosquitto.send(topic, numbered(50, 60), qos=2)
    second = run_until(pipeline, tmp_path, 10 if times == 1 else 60)
    third = run_in_process(pipeline, tmp_path, idle_epochs=5)
    expected = Counter(dict.fromkeys(range(50), times) | dict.fromkeys(range(50, 60), 1))
    assert Counter(found(first, second, third)) == expected


@pytest.mark.parametrize("qos", ["AtLeastOnce", "ExactlyOnce"])
def test_a_message_that_was_received_and_not_kept_comes_again(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: str
) -> None:
    topic = mosquitto.topic()
    pipeline = reading(mosquitto, topic, qos=qos)
    subscribe(pipeline, tmp_path)
    mosquitto.send(topic, numbered(0, 50), qos=2)

    def crashing(*_: Any, **__: Any) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(received.ReceivedLog, "append", crashing)
        with pytest.raises(CrashError):
            run_until(pipeline, tmp_path, 50)
    assert found(run_until(pipeline, tmp_path, 50)) == list(range(50))


@pytest.mark.parametrize("qos", ["AtLeastOnce", "ExactlyOnce"])
def test_a_broker_that_restarts_during_the_run_costs_no_messages(tmp_path: Path, qos: str) -> None:
    pytest.importorskip("paho.mqtt.client")
    (tmp_path / "broker").mkdir()
    with run_mosquitto(tmp_path / "broker") as broker:
        topic, out, state = broker.topic(), tmp_path / "out.json", tmp_path / "state"
        sql = copying(broker, topic, out, qos)
        subscribe(query(sql), state)
        broker.send(topic, numbered(0, 100), qos=2)

        def restart(name: str, epoch: int) -> None:
            if name == "begin" and epoch == 2:
                broker.stop()
                broker.start()
                broker.send(topic, numbered(100, 200), qos=2)

        run_in_process(
            query(sql),
            state,
            idle_epochs=10**9,
            stop=stop_at(out, 200),
            on_step=restart,
            epoch_rows=20,
        )
        seen = lines(out)
    assert set(seen) == set(range(200))
    if qos == "ExactlyOnce":
        assert set(seen.values()) == {1}


def test_more_messages_are_under_way_than_an_epoch_takes(mosquitto: Mosquitto, tmp_path: Path) -> None:
    topic = mosquitto.topic()
    pipeline = reading(mosquitto, topic)
    subscribe(pipeline, tmp_path)
    mosquitto.send(topic, numbered(0, 3000))
    result = run_until(pipeline, tmp_path, 3000)
    assert found(result) == list(range(3000))
    assert result.epochs < 3000 / 20  # a broker sends 20 before it waits, unless it is told otherwise


# ------------------------------------------------------------------------------------------- content


def test_wildcards_are_many_topics_and_metadata_says_which(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = mosquitto.topic()
    columns = "n BIGINT, t TEXT METADATA FROM 'topic'"
    pipeline = reading(mosquitto, f"{base}/+/x/#", columns, "n, t", qos="0")
    mosquitto.send(f"{base}/retained/x", numbered(0, 1), retain=True)
    assert found(run_until(pipeline, tmp_path, 1), column="t") == [f"{base}/retained/x"]
    mosquitto.send(f"{base}/missed/x", numbered(9, 10))  # with QoS 0 nothing is kept for later

    connected, connect = threading.Event(), mqtt.Broker.connect

    def telling(broker: mqtt.Broker) -> None:
        connect(broker)
        connected.set()

    def send() -> None:
        connected.wait(30)
        for topic in ("a/x", "b/x/y/z", "b/y", "c/x"):
            mosquitto.send(f"{base}/{topic}", numbered(1, 2))

    monkeypatch.setattr(mqtt.Broker, "connect", telling)
    sending = threading.Thread(target=send)
    sending.start()
    later = run_until(pipeline, tmp_path, 3)
    sending.join()
    assert found(later, column="t") == [f"{base}/a/x", f"{base}/b/x/y/z", f"{base}/c/x"]


def test_bad_messages_end_the_run_or_are_dropped(mosquitto: Mosquitto, tmp_path: Path) -> None:
    topic = mosquitto.topic()
    for name, options in (("fail", {}), ("drop", {"bad_data": "drop"})):
        pipeline = reading(mosquitto, topic, **options)
        subscribe(pipeline, tmp_path / name)
    mosquitto.send(topic, ['{"n": 1}', "{", '{"n": "x"}', '{"n": 2}'])
    with pytest.raises(BadLineError, match=r"place \d of part \d+ of what was received") as caught:
        run_until(reading(mosquitto, topic), tmp_path / "fail", 2)
    assert topic in str(caught.value)
    assert found(run_until(reading(mosquitto, topic, bad_data="drop"), tmp_path / "drop", 2)) == [1, 2]


def test_a_look_leaves_no_trace_at_the_broker(mosquitto: Mosquitto, tmp_path: Path) -> None:
    topic = mosquitto.topic()
    pipeline = reading(mosquitto, topic)
    subscribe(pipeline, tmp_path / "state")
    mosquitto.send(topic, numbered(0, 3))
    source = MqttSource(url=mosquitto.url, topic=topic, schema={"n": "int64"})
    assert source.reach() == f"a broker of MQTT 5 at {mosquitto.url}, topic {topic}"
    look = source.for_sampling()
    look.open(open_storage(str(tmp_path / "look")), job_id="job", node="op")
    start = look.initial_offset(time=0)
    look.latest_offset(start, Limit(1, 0), parallelism=1)
    mosquitto.send(topic, numbered(3, 4), retain=True)
    wait_for(lambda: look.latest_offset(start, Limit(10, 0), parallelism=1) != start)
    look.close()
    assert found(run_until(pipeline, tmp_path / "state", 4)) == [0, 1, 2, 3]


# -------------------------------------------------------------------------------------- when things fail


def test_who_is_not_known_is_refused_at_once(mosquitto: Mosquitto, tmp_path: Path) -> None:
    options = {"url": mosquitto.guarded_url, "username": USER, "topic": "open/x"}
    for version in ("5", "3.1.1"):
        wrong = {"password": "wr0ng-one", "protocol": version, **options}
        pipeline = query(table("mqtt", "n BIGINT", **wrong) + "SELECT n FROM numbers")
        with pytest.raises(ExternalError, match="refuses the connection: Not authorized") as caught:
            run_until(pipeline, tmp_path / version, 1)
        assert not caught.value.retry
        assert "wr0ng-one" not in str(caught.value)
        assert "password" in str(caught.value)
    right = query(table("mqtt", "n BIGINT", password=PASSWORD, **options) + "SELECT n FROM numbers")
    subscribe(right, tmp_path / "right")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_subscription_that_fails_is_asked_for_again(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    kept, asked = mqtt.Broker.subscribe, []

    def failing(broker: mqtt.Broker) -> None:
        asked.append(broker)
        if len(asked) == 1:
            raise ExternalError("the quota is exceeded")
        kept(broker)

    monkeypatch.setattr(mqtt.Broker, "subscribe", failing)
    topic = mosquitto.topic()
    pipeline = reading(mosquitto, topic, protocol=version)
    subscribe(pipeline, tmp_path)
    mosquitto.send(topic, numbered(0, 3))
    assert found(run_until(pipeline, tmp_path, 3)) == [0, 1, 2]
    assert len(asked) == 2


def test_a_broker_that_is_not_there_ends_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
    pipeline = query(
        table("mqtt", "n BIGINT", url="mqtt://me:s3cret@127.0.0.1:9", topic="t") + "SELECT n FROM numbers"
    )
    with pytest.raises(ExternalError, match=r"mqtt does not answer: .*refused") as caught:
        run_until(pipeline, tmp_path, 1)
    assert "s3cret" not in str(caught.value)


def test_something_else_than_a_broker_ends_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(mqtt, "ANSWER_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"mqtt://127.0.0.1:{silent.getsockname()[1]}"
        pipeline = query(table("mqtt", "n BIGINT", url=url, topic="t") + "SELECT n FROM numbers")
        with pytest.raises(ExternalError, match="the broker does not answer"):
            run_until(pipeline, tmp_path, 1)


def test_certificates_are_checked(
    mosquitto: Mosquitto, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    topic = mosquitto.topic()
    secured = {"url": mosquitto.secured_url}
    with pytest.raises(ExternalError, match="certificate of the server is not trusted"):
        run_until(reading(mosquitto, topic, **secured), tmp_path / "a", 1)
    trusted: dict[str, Any] = {**secured, "tls__ca": certificate[0]}
    pipeline = reading(mosquitto, topic, **trusted)
    subscribe(pipeline, tmp_path / "b")
    mosquitto.send(topic, numbered(0, 3))
    assert found(run_until(pipeline, tmp_path / "b", 3)) == [0, 1, 2]
