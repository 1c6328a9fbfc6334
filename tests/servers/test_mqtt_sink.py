"""The mqtt sink against a real broker, and whole pipelines from topic to topic."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ExternalError
from headrace.connectors.http import client as http_client
from headrace.connectors.mqtt.connection import Broker
from headrace.connectors.mqtt.sink import MqttSink
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.http import found, query, run_until, table, wait_for
from tests.servers.mqtt import PASSWORD, USER, Mosquitto, run_mosquitto, subscribe
from tests.support import SinkDriver

ROWS = 60
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def sink(broker: Mosquitto, topic: str, folder: Path, **options: Any) -> SinkDriver:
    given = {"url": broker.url, "topic": topic, **options}
    return SinkDriver(lambda: MqttSink(**given), folder)


def numbers(count: int, first: int = 0) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": list(range(first, first + count))})]


def counted(messages: list[Any]) -> Counter[int]:
    return Counter(json.loads(message.payload)["n"] for message in messages)


def copying(broker: Mosquitto, topic: str) -> Any:
    Path("in.json").write_text("\n".join(json.dumps({"n": n}) for n in range(ROWS)))
    return query(
        table("single_file", "n BIGINT", path="in.json", wait_for_control="false")
        + table("mqtt", "n BIGINT", "sink", "copied", url=broker.url, topic=topic)
        + "INSERT INTO copied SELECT n FROM numbers;"
    )


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", ["AtMostOnce", "AtLeastOnce", "ExactlyOnce"])
def test_rows_are_messages_in_their_order(
    mosquitto: Mosquitto, tmp_path: Path, qos: str, version: str
) -> None:
    topic = mosquitto.topic()
    with mosquitto.listening(topic) as messages:
        driver = sink(mosquitto, topic, tmp_path, qos=qos, protocol=version)
        driver.run(1, numbers(1000))
        wait_for(lambda: len(messages) >= 1000)
    assert [json.loads(message.payload)["n"] for message in messages] == list(range(1000))
    assert {message.qos for message in messages} == {driver.make().options.level}  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_shows_every_row(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = mosquitto.topic()

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with mosquitto.listening(topic) as messages:
        with pytest.raises(CrashError):
            run_in_process(copying(mosquitto, topic), tmp_path / "state", epoch_rows=20, on_step=crash)
        run_in_process(copying(mosquitto, topic), tmp_path / "state", epoch_rows=20)
        wait_for(lambda: len(messages) >= ROWS)
    assert counted(messages) == Counter(range(ROWS))


def test_a_crash_inside_a_commit_sends_the_epoch_again(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic, kept, sent = mosquitto.topic(), Broker.publish, []

    def crashing(broker: Broker, value: bytes, *, retain: bool) -> Any:
        sent.append(value)
        if len(sent) == 30:
            raise CrashError
        return kept(broker, value, retain=retain)

    with mosquitto.listening(topic) as messages:
        with monkeypatch.context() as patch:
            patch.setattr(Broker, "publish", crashing)
            with pytest.raises(CrashError):
                run_in_process(copying(mosquitto, topic), tmp_path / "state", epoch_rows=20)
        run_in_process(copying(mosquitto, topic), tmp_path / "state", epoch_rows=20)
        wait_for(lambda: len(counted(messages)) >= ROWS)
    assert set(counted(messages)) == set(range(ROWS))
    assert set(counted(messages).values()) <= {1, 2}


@pytest.mark.parametrize("qos", ["AtMostOnce", "AtLeastOnce", "ExactlyOnce"])
def test_a_broker_that_restarts_during_a_commit_costs_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: str
) -> None:
    pytest.importorskip("paho.mqtt.client")
    (tmp_path / "broker").mkdir()
    kept, sent = Broker.publish, []

    def restarting(broker: Broker, value: bytes, *, retain: bool) -> Any:
        sent.append(value)
        if len(sent) == 50:
            server.stop()
            server.start()
        return kept(broker, value, retain=retain)

    monkeypatch.setattr(Broker, "publish", restarting)
    with run_mosquitto(tmp_path / "broker") as server:
        topic = server.topic()
        # Who listens has to survive the restart too: a persistent session.
        subscriber = {"url": server.url, "topic": topic, "qos": "ExactlyOnce"}
        reading = query(table("mqtt", "n BIGINT", **subscriber) + "SELECT n FROM numbers")
        subscribe(reading, tmp_path / "reader")
        # With QoS 0 the broker keeps nothing for who is not there, so the restart is before the last message.
        if qos == "AtMostOnce":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(http_client, "PATIENCE_SECONDS", 20)
                sink(server, topic, tmp_path / "sink", qos=qos).run(1, numbers(200))
            assert len(sent) >= 250
            return
        sink(server, topic, tmp_path / "sink", qos=qos).run(1, numbers(200))
        lives = [run_until(reading, tmp_path / "reader", 200)]
        while len(set(found(*lives))) < 200:  # those that came twice were counted
            lives.append(run_until(reading, tmp_path / "reader", 1))
    rows = found(*lives)
    assert set(rows) == set(range(200))


def test_the_last_message_is_retained_for_those_who_come_later(mosquitto: Mosquitto, tmp_path: Path) -> None:
    topic = mosquitto.topic()
    sink(mosquitto, topic, tmp_path, **{"sink.retain": True}).run(1, numbers(3))
    with mosquitto.listening(topic) as messages:
        wait_for(lambda: messages)
    assert counted(messages) == Counter([2])
    assert messages[0].retain


def test_a_message_that_is_too_large_fails_the_epoch(mosquitto: Mosquitto, tmp_path: Path) -> None:
    driver = sink(mosquitto, mosquitto.topic(), tmp_path, max_packet_size=1000, format="raw_string")
    with pytest.raises(ExternalError, match="a message of 2000 bytes is larger than `max_packet_size`"):
        driver.run(1, [pa.record_batch({"value": ["x" * 2000]})])


def test_who_may_not_write_is_told_so(mosquitto: Mosquitto, tmp_path: Path) -> None:
    login = {"url": mosquitto.guarded_url, "username": USER, "password": PASSWORD}
    sink(mosquitto, "open/x", tmp_path, **login).run(1, numbers(1))
    for qos in ("AtLeastOnce", "ExactlyOnce"):
        with pytest.raises(ExternalError, match="refuses a message: Not authorized"):
            sink(mosquitto, "closed/x", tmp_path, qos=qos, **login).run(2, numbers(1))
    with pytest.raises(ExternalError, match="refuses the connection: Not authorized") as caught:
        sink(mosquitto, "open/x", tmp_path, **{**login, "password": "wr0ng-one"}).run(3, numbers(1))
    assert "wr0ng-one" not in str(caught.value)


def test_a_broker_that_is_not_there_fails_the_epoch_after_a_while(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ExternalError, match="mqtt does not answer"):
        sink(mosquitto, "t", tmp_path, url="mqtt://127.0.0.1:9").run(1, numbers(1))
    assert MqttSink(url=mosquitto.url, topic="t").reach() == f"a broker of MQTT 5 at {mosquitto.url}, topic t"
