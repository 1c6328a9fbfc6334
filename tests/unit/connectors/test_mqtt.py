"""What the connectors of MQTT are told, and which messages count as new."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.connectors.mqtt.sink import MqttSink
from headrace.connectors.mqtt.source import _ALL, MqttSource, _Token
from headrace.connectors.received import Received
from headrace.model.registry import registry
from headrace.storage.open import open_storage

SECRET = "s3cret-w0rd"
PLAIN: dict[str, Any] = {"url": "mqtt://h", "topic": "a/b", "format": "raw_string"}


@pytest.mark.parametrize(
    ("given", "level"),
    [("AtMostOnce", 0), ("at_least_once", 1), ("exactly-once", 2), (0, 0), ("1", 1), (2, 2), (None, 1)],
)
def test_levels_have_names_and_numbers(given: Any, level: int) -> None:
    options = {} if given is None else {"qos": given}
    assert MqttSource(**PLAIN, **options).options.level == level


def test_a_level_that_is_none_is_refused() -> None:
    for wrong in ("often", 3, ""):
        with pytest.raises(ConfigurationError, match="option `qos`"):
            MqttSource(**PLAIN, qos=wrong)


@pytest.mark.parametrize("topic", ["a", "/", "a/+/b", "+", "#", "a/#", "$share/g/a/+", "a//b"])
def test_a_source_reads_topics_with_wildcards(topic: str) -> None:
    assert MqttSource(**{**PLAIN, "topic": topic}).options.topic == topic


@pytest.mark.parametrize("topic", ["", "a/#/b", "a#", "a/b+", "a/+b/c", "a\0"])
def test_a_topic_that_is_none_is_refused(topic: str) -> None:
    with pytest.raises(ConfigurationError, match="option `topic`"):
        MqttSource(**{**PLAIN, "topic": topic})


def test_a_sink_writes_to_one_topic() -> None:
    for topic in ("a/+", "#"):
        with pytest.raises(ConfigurationError, match="rows are written to one topic"):
            MqttSink(**{**PLAIN, "topic": topic})


@pytest.mark.parametrize(
    "url",
    ["", "host:1883", f"http://u:{SECRET}@h", "mqtt://", f"mqtt://h:{SECRET}", f"mqtt://h?password={SECRET}"],
)
def test_an_url_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match="option `url` is an address such as mqtt://host:1883"
    ) as caught:
        MqttSource(**{**PLAIN, "url": url})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("role", ["source", "sink"])
def test_secrets_are_in_no_plan_and_no_dump(role: Any) -> None:
    given = {**PLAIN, "url": f"mqtts://me:{SECRET}@h:99", "username": "me", "password": SECRET}
    built: Any = registry.build(role, "mqtt", given)
    assert built.display() == f"{type(built).__name__}(mqtts://h:99, topic a/b)"
    assert SECRET not in repr(built.options) + built.options.model_dump_json()
    assert json.loads(built.options.model_dump_json(by_alias=True))["password"] == "***"
    assert all(field.description for field in registry.options(role, "mqtt").model_fields.values())


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (MqttSource, MqttSink):
        kind(**PLAIN).validate()
    monkeypatch.delitem(sys.modules, "headrace.connectors.mqtt.client")
    monkeypatch.delattr("headrace.connectors.mqtt.client")
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    for kind in (MqttSource, MqttSink):
        with pytest.raises(MissingExtraError, match=r"headrace\[mqtt\]"):
            kind(**PLAIN).validate()


def test_a_session_ends_some_day() -> None:
    for wrong in ("0s", "100000d"):
        with pytest.raises(ConfigurationError, match="`session_expiry` is at least a second"):
            MqttSource(**PLAIN, session_expiry=wrong)


def test_the_name_at_the_broker_stays_and_belongs_to_the_job_the_topic_and_the_level(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))

    def name(job: str, node: str, **options: Any) -> str:
        source = MqttSource(**{**PLAIN, **options})
        source.open(storage, job_id=job, node=node)
        return source._client_id

    first = name("job", "op")
    assert first.startswith("headrace-")
    assert len(first) <= 23
    assert first == name("job", "op")
    others = [
        name("other", "op"),
        name("job", "other"),
        name("job", "op", topic="c"),
        name("job", "op", qos=2),
    ]
    assert len({first, *others}) == 5
    assert name("job", "op", client_prefix="mine") == first.replace("headrace-", "mine-")


# --------------------------------------------------------------------------------------- what is new


def message(message_id: int, content: str, *, again: bool = False, level: int = 2) -> Received:
    return Received(content.encode(), 0, {}, _Token(message_id, level, again, content))


def settle(source: MqttSource, resume: Any, *messages: Received) -> tuple[list[str], Any]:
    fresh, resume = source.settle(resume, messages)
    return [one.value.decode() for one in fresh], json.loads(json.dumps(resume))


def test_a_message_of_qos_2_that_is_kept_does_not_count_when_it_comes_again() -> None:
    source = MqttSource(**PLAIN, qos=2)
    fresh, resume = settle(source, None, message(1, "a"), message(2, "b"))
    assert (fresh, resume) == (["a", "b"], {"1": "a", "2": "b"})
    fresh, resume = settle(source, resume, message(1, "a", again=True), message(3, "c", again=True))
    assert (fresh, resume) == (["c"], {"1": "a", "2": "b", "3": "c"})


def test_a_message_that_is_released_is_forgotten_and_its_id_may_be_another() -> None:
    source = MqttSource(**PLAIN, qos=2)
    _, resume = settle(source, None, message(1, "a"), message(2, "b"), message(3, "c"))
    source._released += [1, 2]
    fresh, resume = settle(source, resume, message(1, "a", again=True), message(2, "x"), message(3, "y"))
    assert (fresh, resume) == (["a", "x", "y"], {"1": "a", "2": "x", "3": "y"})


def test_a_broker_that_has_forgotten_us_sends_nothing_again() -> None:
    source = MqttSource(**PLAIN, qos=2)
    _, resume = settle(source, None, message(1, "a"))
    source._released += [_ALL]
    assert settle(source, resume, message(1, "a", again=True)) == (["a"], {"1": "a"})
    source._released += [1]
    assert settle(source, {"1": "a"}) == ([], None)


def test_messages_of_qos_1_and_0_count_whenever_they_come() -> None:
    source = MqttSource(**PLAIN, qos=1)
    again = [message(1, "a", level=1), message(1, "a", level=1, again=True), Received(b"b", 0, {}, None)]
    assert settle(source, None, *again) == (["a", "a", "b"], None)
