"""The REST API without a pipeline that runs: connections, functions, and requests made from its document."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from headrace.server.connections import flatten
from headrace.server.database import ServerDatabase
from headrace.server.migrations import MIGRATIONS
from headrace.server.schemas import read_schema
from tests.serving import AnswerError, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("requests"))
    yield server
    server.close()


def test_no_request_that_the_document_allows_makes_the_server_fail(server: Server) -> None:
    document = schemathesis.openapi.from_url(f"{server.address}/api/v1/api-docs/openapi.json")
    failed = []
    for operation in document.get_all_operations():
        described: Any = operation.ok()  # type: ignore[union-attr]
        if described.label.endswith(("/output", "/tap")):
            continue

        @settings(
            max_examples=6,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=described.as_strategy())
        def send(case: Any) -> None:
            answer = case.call(base_url=server.address)
            if answer.status_code >= 500 and answer.status_code != 502:
                failed.append((case.method, case.path, answer.status_code, answer.text[:300]))
            if answer.status_code >= 400:
                assert list(answer.json()) == ["error"]

        send()
    assert failed == []
    assert "Traceback" not in server.log


def test_connectors_have_json_schemas_of_their_options(server: Server) -> None:
    connectors = {connector["id"]: connector for connector in server.get("/connectors")["data"]}
    kafka = connectors["kafka"]
    assert (kafka["name"], kafka["source"], kafka["sink"]) == ("Kafka", True, True)
    schema = json.loads(kafka["table_config"])
    assert schema["required"] == ["bootstrap_servers"]
    assert schema["properties"]["topic"]["x-roles"] == ["source", "sink"]
    assert "bootstrap_servers" in json.loads(kafka["connection_config"])["properties"]
    assert schema["properties"]["auth.password"]["writeOnly"] is True
    assert connectors["impulse"]["connection_config"] is None


def test_it_says_that_it_is_healthy_and_ready(server: Server) -> None:
    assert server.ask("GET", "/../healthz") == server.ask("GET", "/../readyz") == "ok\n"
    assert "# TYPE headrace_job_state gauge" in server.ask("GET", "/../metrics")


PYTHON = """
import headrace as hr

pipeline = hr.Pipeline("counts")
pipeline.source("impulse", event_rate=10).map(lambda row: {"n": row["counter"]}).sink("blackhole")
"""
DATAFLOW = Path(__file__).parents[3] / "examples" / "dataflow-sql"


def test_a_pipeline_may_be_written_in_python(server: Server) -> None:
    validated = server.post("/pipelines/validate_query", {"query": PYTHON, "kind": "python"})
    assert validated["errors"] == []
    assert validated["graph"]["nodes"][0]["id"] == "impulse_1"
    broken = server.post("/pipelines/validate_query", {"query": "import nothing_of_it", "kind": "python"})
    assert "nothing_of_it" in broken["errors"][0]["message"]


def test_a_pipeline_may_be_a_dataflow_with_files(server: Server) -> None:
    body = {"query": (DATAFLOW / "dataflow.yml").read_text(), "kind": "dataflow"}
    (error,) = server.post("/pipelines/validate_query", body)["errors"]
    assert "rise.py" in error["message"]
    files = {"rise.py": (DATAFLOW / "rise.py").read_text()}
    validated = server.post("/pipelines/validate_query", {**body, "files": files})
    assert validated["errors"] == []
    assert "per_gate.tumble" in [node["id"] for node in validated["graph"]["nodes"]]
    with pytest.raises(AnswerError, match="cannot be the name of a file"):
        server.post("/pipelines/validate_query", {**body, "files": {"../rise.py": ""}})


def test_functions_are_checked_saved_called_and_deleted(server: Server) -> None:
    source = "from arroyo_udf import udf\n\n@udf\ndef twice(x: int) -> int:\n    return x * 2\n"
    validated = server.post("/udfs/validate", {"definition": source, "language": "python"})
    assert validated == {"udf_name": "twice", "errors": []}
    broken = server.post("/udfs/validate", {"definition": "def twice(:", "language": "python"})
    assert broken["udf_name"] is None
    assert "invalid syntax" in broken["errors"][0]
    saved = server.post("/udfs", {"prefix": "math", "definition": source, "language": "python"})
    assert (saved["name"], saved["prefix"]) == ("twice", "math")
    query = "CREATE TABLE n (counter BIGINT) WITH (connector = 'impulse'); SELECT twice(counter) AS t FROM n"
    assert server.post("/pipelines/validate_query", {"query": query})["errors"] == []
    server.delete(f"/udfs/{saved['id']}")
    (error,) = server.post("/pipelines/validate_query", {"query": query})["errors"]
    assert "twice" in error["message"]


def test_code_that_is_checked_runs_outside_of_the_server(server: Server) -> None:
    source = "import os\nos._exit(7)"
    with pytest.raises(AnswerError, match="died"):
        server.post("/udfs/validate", {"definition": source, "language": "python"})
    assert server.get("/ping") == {"pong": True}


def test_a_connection_table_is_tried_and_told_what_is_wrong(server: Server, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text('{"a": 1, "b": "x"}\n')
    body = {"name": "rows", "connector": "single_file", "config": {"path": str(rows), "type": "source"}}
    events = list(server.events("/connection_tables/test", body))
    assert [event["error"] for event in events] == [False] * len(events)
    assert events[-1]["done"] is True
    assert [event["message"] for event in events[-2:]] == [
        "1 rows of a sample fit the columns",
        '{"a":1,"b":"x"}',
    ]
    with pytest.raises(AnswerError, match="has no option `pathh`; did you mean `path`"):
        server.post("/connection_tables", {**body, "config": {"pathh": "x"}})
    missing = {**body, "config": {"path": str(tmp_path / "no"), "type": "source"}, "schema": {
        "fields": [{"name": "a", "type": "int64", "required": True}], "format": "json"}}  # fmt: skip
    (*_, last) = server.events("/connection_tables/test", missing)
    assert last["error"] is True
    made = server.post("/connection_tables", body)
    assert [(f["name"], f["type"]) for f in made["schema"]["fields"]] == [("a", "int64"), ("b", "string")]
    with pytest.raises(AnswerError, match="already"):
        server.post("/connection_tables", body)
    server.delete(f"/connection_tables/{made['id']}")


def test_a_profile_says_what_was_said_about_it_or_what_it_is(server: Server) -> None:
    body = {"name": "told", "connector": "kafka", "config": {"bootstrapServers": "127.0.0.1:1"}}
    told = server.post("/connection_profiles", {**body, "description": "orders of the north"})
    plain = server.post("/connection_profiles", {**body, "name": "plain"})
    assert (told["description"], plain["description"]) == ("orders of the north", "kafka: plain")
    assert server.get("/connection_profiles")["data"][0]["description"] == "orders of the north"
    for each in (told, plain):
        server.delete(f"/connection_profiles/{each['id']}")


def test_a_database_of_the_first_version_is_brought_to_this_one(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.executescript(MIGRATIONS[0])
        old.execute(
            "INSERT INTO connection_profiles (id, name, connector, config, secrets, created_at) "
            "VALUES ('cp_1', 'broker', 'kafka', '{}', '{}', 1)"
        )
        old.execute("PRAGMA user_version = 1")
        old.commit()
    database = ServerDatabase(tmp_path / "old.db")
    row = database.one("SELECT name, description FROM connection_profiles")
    assert row == {"name": "broker", "description": None}
    database.close()
    again = ServerDatabase(tmp_path / "old.db")
    assert again.one("PRAGMA user_version") == {"user_version": len(MIGRATIONS)}
    again.close()


def test_options_of_arroyos_clients_are_those_of_sql() -> None:
    config = {"topic": "t", "type": {"source": {"offset": "latest", "readMode": "read_committed"}}}
    assert flatten(config) == {
        "topic": "t",
        "type": "source",
        "source.offset": "latest",
        "source.read_mode": "read_committed",
    }
    profile = {
        "bootstrapServers": "b:9092",
        "authentication": {},
        "schemaRegistryEnum": {"endpoint": "http://r"},
    }
    assert flatten(profile) == {"bootstrap_servers": "b:9092", "schema_registry.endpoint": "http://r"}


def test_a_schema_of_fields_or_of_a_definition_becomes_columns() -> None:
    fields = [
        {"name": "id", "type": "int64", "required": True},
        {"name": "who", "type": "struct", "fields": [{"name": "name", "type": "string"}]},
        {"name": "tags", "type": "list", "element": {"name": "item", "type": "string"}},
        {"name": "body", "type": "json"},
    ]
    schema = read_schema({"format": {"json": {"timestampFormat": "unix_millis"}}, "fields": fields})
    assert schema.lines == ["id BIGINT NOT NULL", "who STRUCT<name TEXT>", "tags TEXT[]", "body JSON"]
    assert schema.options == {"format": "json", "json.timestamp_format": "unix_millis"}
    avro = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
    assert read_schema({"definition": {"avro_schema": avro}}).lines == ["a BIGINT"]
    proto = 'syntax = "proto3"; message R { int64 a = 1; }'
    assert read_schema({"definition": {"protobuf_schema": proto}}).options["format"] == "protobuf"
    json_schema = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    assert read_schema({"definition": {"json_schema": json_schema}}).lines == ["a BIGINT"]
