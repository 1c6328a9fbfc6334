"""What can be known of the redis sink without a server; tests/servers asks real ones."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, MissingExtraError, SqlError
from headrace.connectors.redis.sink import RedisSink
from headrace.model.registry import registry

GOOD: dict[str, Any] = {"address": "redis://me:hush@host:1", "target": "string", "target.key_column": "k"}
HASH = {"target": "hash", "target.field_column": "f"}


def test_every_option_is_described() -> None:
    assert all(field.description for field in registry.options("sink", "redis").model_fields.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": None}, "`target`"),
        ({"target": "set"}, "`target`"),
        ({"address": None}, "either `address` or `cluster.addresses`"),
        ({"cluster.addresses": "redis://a"}, "either `address` or `cluster.addresses`"),
        ({"target.key_column": None}, "it takes `target.key_prefix`, `target.key_column`, or both"),
        ({"target": "hash"}, "`target.field_column` goes with `target` = 'hash', and is needed there"),
        ({"target.field_column": "f"}, "`target.field_column` goes with `target` = 'hash'"),
        ({"target.max_length": 3}, "go with `target` = 'list'"),
        ({**HASH, "target.operation": "append"}, "go with `target` = 'list'"),
        ({"target": "list", "target.operation": "insert"}, "`target.operation`"),
        ({"target": "list", "target.max_length": 0}, "`target.max_length`"),
        ({"target.ttl_secs": 0}, "`target.ttl_secs`"),
        ({"target.ttl_sec": 1}, "did you mean `target.ttl_secs`"),
        ({"format": "debezium_json"}, "take updating results as they are"),
        ({"schema": {"key": "string"}}, "there is no column `k`"),
        ({**HASH, "schema": {"k": "string"}}, "there is no column `f`"),
        ({"tls.ca": "ca.pem"}, "need addresses that begin with rediss://"),
        ({"address": "rediss://h", "tls.cert": "c.pem"}, "`tls.cert` and `tls.key` go together"),
    ],
)
def test_options_that_make_no_sink_are_refused(given: dict[str, Any], said: str) -> None:
    options = {name: value for name, value in {**GOOD, **given}.items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        RedisSink(**options)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_address_that_is_none_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a Redis server"):
        RedisSink(**{**GOOD, "address": "localhost:6379"}).validate()


def test_a_missing_client_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match="`redis`") as caught:
        RedisSink(**GOOD).validate()
    assert caught.value.hint == "pip install 'headrace[redis]'"


def test_what_is_shown_holds_no_password() -> None:
    sink = RedisSink(**{**GOOD, "password": "hush"})
    assert sink.display() == "RedisSink(string at redis://host:1)"
    assert "hush" not in repr(sink.options) + sink.options.model_dump_json()
    assert cloudpickle.loads(cloudpickle.dumps(sink)).display() == sink.display()


def test_strings_and_hashes_take_updates_and_lists_do_not() -> None:
    assert RedisSink(**GOOD).accepts_updates
    assert RedisSink(**{**GOOD, **HASH}).accepts_updates
    assert not RedisSink(**{**GOOD, "target": "list"}).accepts_updates
    changes = {"address": "redis://h", "target": "list", "target.key_prefix": "c", "format": "debezium_json"}
    assert RedisSink(**changes).accepts_updates


def test_a_list_refuses_an_updating_query() -> None:
    sql = """
        CREATE TABLE n WITH (connector = 'impulse', message_count = 3);
        CREATE TABLE c (n BIGINT) WITH (
          connector = 'redis', type = 'sink', address = 'redis://h', format = 'json', target = 'list',
          'target.key_prefix' = 'x'
        );
        INSERT INTO c SELECT count(*) FROM n;
    """
    with pytest.raises(SqlError, match="cannot take an updating result"):
        Pipeline.from_sql(sql, name="counts")


def test_changes_of_a_row_come_to_what_is_left_of_it() -> None:
    sink = RedisSink(**GOOD)
    table = pa.table(
        {
            "k": ["a", "a", "b", "b", "c", "d", "d"],
            "n": [1, 2, 1, 1, 1, 2, 1],
            "_retract": [True, False, False, True, True, False, True],
        }
    )
    found = [(row["key"], row["deleted"]) for row in sink._writes(table).to_pylist()]
    # b came and went; what was taken back of a and d is left out by the commit, which sets them.
    assert sorted(found) == [(b"a", False), (b"a", True), (b"c", True), (b"d", False), (b"d", True)]
