"""What can be known of Redis lookups without a server; tests/servers asks a real one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.connectors.redis.lookup import RedisLookup
from headrace.model.registry import registry

GOOD = {
    "address": "redis://localhost:6379/0",
    "schema": {"id": "string", "name": "string"},
    "primary_key": ["id"],
    "metadata": {"id": "key"},
}


def test_it_is_built_by_its_name() -> None:
    built = registry.build_lookup("redis", GOOD)
    built.validate()
    assert (built.key, built.columns.names) == ("id", ["id", "name"])
    assert built.cache_bytes == 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": None}, "either `address` or `cluster.addresses`"),
        ({"cluster.addresses": "redis://a"}, "either `address` or `cluster.addresses`"),
        ({"metadata": {}}, "METADATA FROM 'key'"),
        ({"metadata": {"id": "key", "name": "key"}}, "METADATA FROM 'key'"),
        ({"metadata": {"id": "ttl"}}, "no `ttl`"),
        ({"primary_key": ["name"]}, "the primary key `name` is not the key in Redis"),
        ({"format": "raw_string"}, "value"),
        ({"adress": "x"}, "did you mean `address`"),
    ],
)
def test_options_that_make_no_lookup_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisLookup(**{**GOOD, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["localhost:6379", "http://localhost", "redis://me:hush@host:port"])
def test_an_address_that_is_none_is_refused_before_the_run(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a Redis server") as caught:
        RedisLookup(**{**GOOD, "address": address}).validate()
    assert "hush" not in str(caught.value)


def test_a_missing_client_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match="`redis`") as caught:
        RedisLookup(**GOOD).validate()
    assert caught.value.hint == "pip install 'headrace[redis]'"


def test_what_is_shown_holds_no_password() -> None:
    shown = RedisLookup(**{**GOOD, "address": "redis://me:hush@host:1/2", "password": "hush"})
    assert shown.display() == "RedisLookup(redis://host:1/2)"
    assert "hush" not in repr(RedisLookup(**{**GOOD, "password": "hush"}).options)
