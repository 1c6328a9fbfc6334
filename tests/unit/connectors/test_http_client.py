"""What connectors over HTTP are told, and what they never show."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.base.options import parse_options
from headrace.connectors.http.client import EndpointOptions, retry_after
from headrace.connectors.http.polling import PollingHttpSource
from headrace.connectors.http.sse import SseSource
from headrace.connectors.http.webhook import WebhookSink
from headrace.connectors.http.websocket import WebSocketSink, WebSocketSource
from headrace.model.registry import registry

SECRET = "s3cret-t0ken"


def options(**values: Any) -> EndpointOptions:
    return parse_options(EndpointOptions, {"endpoint": "http://h/", **values}, what="it")


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("", {}),
        ("A: 1", {"A": "1"}),
        ("A: 1,B:2", {"A": "1", "B": "2"}),
        ("Accept: a/b, c/d, X-Y: z", {"Accept": "a/b, c/d", "X-Y": "z"}),
        ('Authorization: Digest username="a",realm="b"', {"Authorization": 'Digest username="a",realm="b"'}),
        ("Referer: https://a, https://b:80/x, C: d", {"Referer": "https://a, https://b:80/x", "C": "d"}),
        ("If-Modified-Since: Mon, 12 Jan 2026 10:00:00 GMT, A: b", None),
        ({"A": 1, "B": "x: y, z"}, {"A": "1", "B": "x: y, z"}),
    ],
)
def test_headers_are_a_text_or_a_mapping(text: Any, headers: dict[str, str] | None) -> None:
    if headers is None:
        headers = {"If-Modified-Since": "Mon, 12 Jan 2026 10:00:00 GMT", "A": "b"}
    assert options(headers=text).headers == headers


@pytest.mark.parametrize(
    "wrong",
    [SECRET, f"A B: {SECRET}", {"": SECRET}, {"A": f"{SECRET}\r\nB: c"}, 7, [SECRET], f"A: {SECRET}\x00"],
)
def test_headers_that_cannot_be_sent_are_refused_and_not_shown(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="option `headers`") as caught:
        options(headers=wrong)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "host/path",
        "ftp://h/",
        f"://u:{SECRET}@h",
        "http://",
        f"http://h:{SECRET}/",
        "http://h/ x",
        "http://h:0",
    ],
)
def test_an_endpoint_that_is_none_is_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(
        ConfigurationError, match="option `endpoint` is an address such as https://"
    ) as caught:
        options(endpoint=wrong)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "name", "scheme"),
    [
        ("source", "polling_http", "https"),
        ("source", "sse", "https"),
        ("source", "websocket", "wss"),
        ("sink", "webhook", "https"),
        ("sink", "websocket", "wss"),
    ],
)
def test_secrets_are_in_no_plan_and_no_dump(role: Any, name: str, scheme: str) -> None:
    given = {
        "endpoint": f"{scheme}://me:{SECRET}@h:99/path?key={SECRET}",
        "headers": f"Authorization: Bearer {SECRET}",
        "format": "raw_string",
    }
    built: Any = registry.build(role, name, given)
    assert built.display() == f"{type(built).__name__}({scheme}://h:99/path)"
    assert SECRET not in repr(built.options)
    text = built.options.model_dump_json(by_alias=True)
    assert SECRET not in text
    dumped = json.loads(text)
    assert dumped["headers"] == {"Authorization": "***"}
    assert all(field.description for field in registry.options(role, name).model_fields.values())


def test_what_the_other_side_says_does_not_repeat_a_header() -> None:
    given = options(headers=f"Authorization: Bearer {SECRET}, X-Key: abcdef, Y: ab")
    assert given.hide(f"Bearer {SECRET}; {SECRET}; abcdef; ab") == "***; ***; ***; ab"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0.0),
        ("7", 7.0),
        ("9" * 30, 86_400.0),
        ("²", 0.0),
        ("soon", 0.0),
        ("-3", 0.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
    ],
)
def test_the_time_to_wait_is_a_number_or_a_date(text: str, seconds: float) -> None:
    assert retry_after(SimpleNamespace(headers={"Retry-After": text})) == seconds


def test_a_date_to_wait_for_is_counted_from_now() -> None:
    date = formatdate(time.time() + 1000, usegmt=True)
    assert 900 < retry_after(SimpleNamespace(headers={"Retry-After": date})) <= 1000


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(ConfigurationError, match=r"`tls\.key` needs `tls\.cert`"):
        options(**{"tls.key": "key.pem"})
    given = options(**{"tls.cert": "nowhere.pem"})
    with pytest.raises(ConfigurationError, match=r"option `tls\.cert`: `nowhere\.pem` cannot be read"):
        given.tls_context()


@pytest.mark.parametrize(
    ("build", "extra"),
    [
        (lambda: PollingHttpSource(endpoint="http://h/", format="raw_string"), "http"),
        (lambda: SseSource(endpoint="http://h/", format="raw_string"), "http"),
        (lambda: WebhookSink(endpoint="http://h/"), "http"),
        (lambda: WebSocketSource(endpoint="ws://h/", format="raw_string"), "websocket"),
        (lambda: WebSocketSink(endpoint="ws://h/"), "websocket"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, build: Any, extra: str
) -> None:
    build().validate()
    for name in ("httpx", "websockets.sync.client"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtraError, match=r"which is not installed") as caught:
        build().validate()
    assert f"headrace[{extra}]" in str(caught.value)


# --------------------------------------------------------------------------------------- each connector


def test_a_poll_is_told_how_and_how_often() -> None:
    given = PollingHttpSource(endpoint="http://h/", format="raw_string").options
    assert (given.method, given.poll_interval_ms, given.emit_behavior) == ("GET", 1000, "all")
    for name, wrong in (("method", "DELETE"), ("poll_interval_ms", 0), ("emit_behavior", "new")):
        with pytest.raises(ConfigurationError, match=f"option `{name}`"):
            PollingHttpSource(endpoint="http://h/", format="raw_string", **{name: wrong})
    with pytest.raises(ConfigurationError, match="has no metadata `key`"):
        PollingHttpSource(endpoint="http://h/", metadata={"k": "key"})


def test_rows_that_cannot_go_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'array' does not go with the format raw_string"):
        WebhookSink(endpoint="http://h/", format="raw_string", batch_size=2, batch_format="array")
    with pytest.raises(ConfigurationError, match="`batch_size` > 1 does not go with the format raw_bytes"):
        WebhookSink(endpoint="http://h/", format="raw_bytes", batch_size=2)


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({}, []),
        ({"subscription_message": "a"}, ["a"]),
        ({"subscription_messages": ["a", "b"]}, ["a", "b"]),
        ({f"subscription_messages.{n}": str(n) for n in (10, 9, 1)}, ["1", "9", "10"]),
    ],
)
def test_what_is_said_first_is_one_message_or_several(given: dict[str, Any], messages: list[str]) -> None:
    source = WebSocketSource(endpoint="ws://h/", format="raw_string", **given)
    assert source.options.first_messages == messages


def test_what_is_said_first_is_said_in_one_way() -> None:
    both = {"subscription_message": SECRET, "subscription_messages.0": SECRET}
    with pytest.raises(ConfigurationError, match="either `subscription_message` or") as caught:
        WebSocketSource(endpoint="ws://h/", **both)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="such as wss://host/path"):
        WebSocketSource(endpoint="http://h/")
