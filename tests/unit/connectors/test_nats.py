"""What can be known of the nats connector without a server; tests/servers asks a real one."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.connectors.nats.sink import NatsSink
from headrace.connectors.nats.source import NatsSource
from headrace.connectors.nats.stream import StreamMessage
from headrace.model.operator import Limit
from headrace.model.registry import registry

SERVERS = {"servers": "nats://me:hush@a:4222, b:4222"}
STREAM: dict[str, Any] = {**SERVERS, "stream": "s", "schema": {"n": "int64"}}
SUBJECT: dict[str, Any] = {**SERVERS, "subject": "s.*", "schema": {"n": "int64"}}
LOGIN = {"auth.type": "credentials", "auth.username": "me", "auth.password": "hush"}


@pytest.mark.parametrize("role", ["source", "sink"])
def test_every_option_is_described(role: Any) -> None:
    assert all(field.description for field in registry.options(role, "nats").model_fields.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"servers": ""}, "`servers`"),
        ({"stream": None}, "it takes either `stream` or `subject`"),
        ({"subject": "x"}, "it takes either `stream` or `subject`"),
        ({"stream": "a.b"}, "`a.b` is not the name of a stream"),
        ({"source.offset": "middle"}, "`source.offset`"),
        ({"auth.type": "kerberos"}, "`auth.type`"),
        ({**LOGIN, "auth.password": None}, "`auth.type` = 'credentials' needs `auth.password`"),
        ({"auth.type": "jwt", "auth.jwt": "x"}, "`auth.type` = 'jwt' needs `auth.nkey_seed`"),
        ({"auth.password": "hush"}, "`auth.password` needs `auth.type` = 'credentials'"),
        ({"auth.nkey_seed": "hush"}, "`auth.nkey_seed` needs `auth.type` = 'jwt' or 'nkey'"),
        ({"tls.cert": "c.pem"}, "`tls.cert` and `tls.key` go together"),
        ({"consumer.replay_policy": "Original"}, "`consumer.replay_policy` = 'Original' is not supported"),
        ({"consumer.max_batches": 1}, "did you mean `consumer.max_batch`"),
        ({"metadata": {"n": "sequense"}}, "did you mean `sequence`"),
    ],
)
def test_a_source_that_cannot_work_is_refused_with_the_option(given: dict[str, Any], said: str) -> None:
    options = {name: value for name, value in {**STREAM, **given}.items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        NatsSource(**options)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("option", ["source.offset", "source.bounded", "consumer.filter_subjects"])
def test_what_only_a_stream_has_is_refused_for_a_subject(option: str) -> None:
    value = {"source.offset": "latest", "source.bounded": True}.get(option, "a")
    with pytest.raises(ConfigurationError, match=f"`{option}` needs `stream`"):
        NatsSource(**SUBJECT, **{option: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "it takes `subject`, or `sink.subject_field`"),
        ({"subject": "a b"}, "`a b` is not a subject that can be written to"),
        ({"subject": "a.*"}, "is not a subject"),
        ({"subject": "a..b"}, "is not a subject"),
        ({"sink.subject_field": "s", "format": "debezium_json"}, "does not go with debezium_json"),
    ],
)
def test_a_sink_that_cannot_work_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        NatsSink(**SERVERS, **given)
    assert said in str(caught.value)


@pytest.mark.parametrize("servers", ["http://a", "nats://", "a:port", "nats://me:hush@a:99999"])
def test_an_address_that_is_none_is_refused_before_the_run(servers: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a NATS server") as caught:
        NatsSource(**{**STREAM, "servers": servers}).validate()
    assert "hush" not in str(caught.value)


def test_a_seed_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match=r"`auth\.nkey_seed` is not the seed of a key") as caught:
        NatsSource(**STREAM, **{"auth.type": "nkey", "auth.nkey_seed": "hush"}).validate()
    assert "hush" not in str(caught.value)


def test_a_missing_client_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    for connector in (NatsSource(**STREAM), NatsSink(**SERVERS, subject="s")):
        with pytest.raises(MissingExtraError, match="`nats-py`") as caught:
            connector.validate()
        assert caught.value.hint == "pip install 'headrace[nats]'"


def test_what_is_shown_holds_no_password() -> None:
    source, sink = NatsSource(**STREAM, **LOGIN), NatsSink(**SERVERS, **LOGIN, subject="s")
    assert source.display() == "NatsSource(s at nats://a:4222, b:4222)"
    assert sink.display() == "NatsSink(s at nats://a:4222, b:4222)"
    assert "hush" not in repr(source.options) + source.options.model_dump_json()
    assert cloudpickle.loads(cloudpickle.dumps(source)).display() == source.display()


def test_columns_have_to_be_declared() -> None:
    for given in ({"stream": "s"}, {"subject": "s"}):
        with pytest.raises(ConfigurationError, match="needs to know its columns"):
            NatsSource(**SERVERS, **given).validate()


def test_a_bounded_stream_is_planned_without_asking() -> None:
    source = NatsSource(**STREAM, **{"source.bounded": True})
    start = {"s": {"sequence": 5, "end": 9}}
    middle = source.latest_offset(start, Limit(3, 0), parallelism=1)
    assert middle == {"s": {"sequence": 8, "end": 9}}
    end = source.latest_offset(middle, Limit(3, 0), parallelism=1)
    assert end == source.latest_offset(end, Limit(3, 0), parallelism=1) == {"s": {"sequence": 9, "end": 9}}
    assert (source.is_finished(middle), source.is_finished(end), source.count(start, end)) == (False, True, 4)


@pytest.mark.parametrize(
    "reply",
    ["$JS.ACK.s.c.1.7.2.1700.9", "$JS.ACK._.hash.s.c.1.7.2.1700.9.random", "$JS.ACK.d.hash.s.c.1.7.2.1700.9"],
)
def test_what_a_stream_tells_of_a_message_is_read(reply: str) -> None:
    from nats.aio.msg import Msg

    message = StreamMessage.read(Msg(None, "a.b", reply, b"x", {"h": "1"}))  # type: ignore[arg-type]
    assert message == (b"x", "a.b", 7, 1700, {"h": "1"}, 2)


def test_a_table_of_another_engine_is_understood() -> None:
    sql = """
        CREATE TABLE n (n BIGINT) WITH (
          connector = 'nats', type = 'source', format = 'json', servers = 'localhost:4222', stream = 's',
          'auth.type' = 'credentials', 'auth.username' = 'me', 'auth.password' = 'hush',
          'consumer.ack_policy' = 'Explicit', 'consumer.replay_policy' = 'Instant',
          'consumer.ack_wait' = '30',
          'consumer.filter_subjects' = 'a.*,b', 'consumer.max_batch' = '500', 'consumer.rate_limit' = '-1'
        );
        CREATE TABLE o (n BIGINT) WITH (
          connector = 'nats', type = 'sink', format = 'json', servers = 'localhost:4222', subject = 'out'
        );
        INSERT INTO o SELECT n FROM n;
    """
    assert len(Pipeline.from_sql(sql, name="moved").plan().nodes) >= 2
