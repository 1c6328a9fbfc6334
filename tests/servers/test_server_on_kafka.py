"""A Kafka connection over the REST API of a real server, with the requests of Arroyo's clients."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.servers.kafka import KafkaBroker
from tests.serving import Server

pytestmark = pytest.mark.spark

DEFINITION = json.dumps(
    {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "number"},
            "c": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["a"],
    }
)
SCHEMA: dict[str, Any] = {
    "format": {"type": "json", "confluent_schema_registry": False, "timestamp_format": "rfc3339"},
    "bad_data": None,
    "framing": None,
    "fields": [],
    "definition": {"type": "json_schema", "schema": DEFINITION},
    "inferred": None,
    "primary_keys": [],
}


def test_a_profile_a_table_and_a_pipeline_over_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create()
    server = Server(tmp_path, "--master", "local[1]")
    try:
        assert "Kafka" in [connector["name"] for connector in server.get("/connectors")["data"]]
        config = {"authentication": {}, "bootstrapServers": kafka.address, "schemaRegistryEnum": {}}
        body = {"name": "broker", "connector": "kafka", "config": config}
        tried = server.post("/connection_profiles/test", body)
        assert (tried["error"], tried["done"]) == (False, True)
        profile = server.post("/connection_profiles", body)
        assert topic in server.get(f"/connection_profiles/{profile['id']}/autocomplete")["values"]["topic"]
        assert server.post("/connection_tables/schemas/test", SCHEMA)["error"] is False

        table = {
            "name": "letters",
            "connector": "kafka",
            "connection_profile_id": profile["id"],
            "schema": SCHEMA,
            "config": {"type": {"offset": "earliest", "read_mode": "read_uncommitted"}, "topic": topic},
        }
        (*_, last) = server.events("/connection_tables/test", table)
        assert (last["error"], last["done"]) == (False, True)
        made = server.post("/connection_tables", table)
        fields = {field["name"]: field for field in made["schema"]["fields"]}
        assert {name: (field["type"], field["required"]) for name, field in fields.items()} == {
            "a": ("string", True),
            "b": ("float64", False),
            "c": ("list", False),
        }
        assert fields["c"]["items"]["type"] == "string"

        pipeline = server.create("read", "SELECT * FROM letters")
        server.await_state(pipeline, "Running")
        kafka.send(topic, [b'{"a": "x", "b": 1.5, "c": ["y"]}'])
        for event in server.events(f"{server.path(pipeline)}/output"):
            (row,) = json.loads(event["batch"])
            assert (row["a"], row["b"], row["c"]) == ("x", 1.5, ["y"])
            break
        before = server.await_checkpoint(pipeline)["epoch"]
        kafka.send(topic, [b'{"a": "z"}'])  # without new messages there is no epoch
        server.await_checkpoint(pipeline, after=before)
        server.patch(f"/pipelines/{pipeline}", {"stop": "immediate"})
        server.await_state(pipeline, "Stopped")
        server.delete(f"/pipelines/{pipeline}")
        server.delete(f"/connection_tables/{made['id']}")
        server.delete(f"/connection_profiles/{profile['id']}")
    finally:
        server.close()
